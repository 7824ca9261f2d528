"""The token probabilities of the last answer of a conversation."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localinfer import Model, Piece


class AnswerScores:
    """Scores the tokens of an answer once, and again if the answer or its prompt has changed."""

    def __init__(self) -> None:
        self._tokens: list[int] = []  # of prompt and answer
        self._pieces: list[Piece] = []

    def score(
        self, model: "Model", messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], alternatives: int
    ) -> list["Piece"]:
        """Return the tokens of the last message with their probabilities and `alternatives` other candidates each.

        `settings` are the arguments of `Model.render`. The result is empty if the tokens are not known.
        """
        answer = answer_tokens(messages)
        if not answer:
            return []
        prompt = model.render(messages[:-1], **settings).ids
        if self._tokens != [*prompt, *answer]:
            self._pieces = model.score(prompt, answer, logprobs=alternatives)
            self._tokens = [*prompt, *answer]
        return self._pieces


def answer_tokens(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens of the last message, including its reasoning; empty if they are not known."""
    last = messages[-1] if messages else {}
    return [*last.get("reasoning_ids", ()), *last.get("ids", ())]
