"""A conversation with a model: what was said so far, and how it goes on. Knows nothing of a screen.

Where it no longer fits in the context, whole oldest turns are no longer shown to the model; all of them stay said.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cli.generate import text_of

if TYPE_CHECKING:
    from localinfer import Model, Piece
    from localinfer.sessions import Session

Message = dict[str, Any]


class Conversation:
    """`messages` are questions and answers in turn; `settings` are options that differ from the model's.

    The system prompt is one of the settings. An answer that has begun is kept with its question, however it ends; in
    the `session`, if there is one. The first `left_out` messages are not shown to the model.
    """

    def __init__(self, model: "Model", session: "Session | None" = None) -> None:
        self.model = model
        self.settings: dict[str, Any] = {}
        self.left_out = 0
        self._session = session
        self._messages: list[Message] = [dict(each) for each in session.messages] if session else []
        self._scored: tuple[list[int], list[Piece]] = [], []  # all tokens of prompt and answer, and those of the answer

    @property
    def messages(self) -> list[Message]:
        return self._messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._messages = messages
        self.left_out = min(self.left_out, len(messages))
        if self._session:
            self._session.become(messages)

    @property
    def system(self) -> str:
        return str(self.settings.get("system_prompt", self.model.options.system_prompt))

    @system.setter
    def system(self, text: str) -> None:
        self.settings["system_prompt"] = text

    @property
    def answer(self) -> str:
        """The last one; "" before there is any."""
        return str(self.messages[-1]["content"]) if self.messages else ""

    @property
    def written(self) -> list[int]:
        """The tokens of the last answer, thoughts and all; none where they are not known."""
        last = self.messages[-1] if self.messages else {}
        return [*last.get("thought_ids", ()), *last.get("ids", ())]

    def ask(self, text: str, begun: Sequence[int] = ()) -> Iterator["Piece"]:
        """The answer, piece by piece, which may have `begun` with some tokens; close the iterator to stop it. Raises
        what `Model.chat` raises.
        """
        question: Message = {"role": "user", "content": text}
        pieces: list[Piece] = []
        try:
            shown = self._shown([*self.messages, question])
            for piece in self.model.chat(shown, begun=begun, **self.settings):
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                self.messages = [*self.messages, question, answer_of(pieces)]

    def _shown(self, messages: list[Message]) -> list[Message]:
        """What the model sees of them: whole oldest turns go, where they would leave no room for an answer."""
        seen = as_templates_see(messages)
        if self.model.options.ctx_policy == "drop-turns":
            self.left_out = len(seen) - len(self.model.fitting(seen[self.left_out :], **self.settings))
        return seen[self.left_out :]

    def scored(self, alternatives: int) -> list["Piece"]:
        """The last answer token by token, with probabilities and so many alternatives each; nothing where its tokens
        are not known. It is computed when it is first asked for: until then it costs nothing.
        """
        if not self.written:
            return []
        prompt = self.model.render(as_templates_see(self.messages[self.left_out : -1]), **self.settings).ids
        if self._scored[0] != [*prompt, *self.written]:
            pieces = self.model.score(prompt, self.written, logprobs=alternatives)
            self._scored = [*prompt, *self.written], pieces
        return self._scored[1]

    def undo(self) -> str:
        """Forget the last question and its answer. The question; "" if there was none."""
        if not self.messages:
            return ""
        *self.messages, question, _ = self.messages
        return str(question["content"])

    def regenerate(self, begun: Sequence[int] = ()) -> Iterator["Piece"]:
        """Another answer to the last question, which may have `begun`; it takes the place of the one before as soon as
        it begins.
        """
        before = self.messages
        question = self.undo()
        try:
            yield from self.ask(question, begun)
        finally:
            if len(self.messages) < len(before):
                self.messages = before

    def clear(self) -> None:
        self.messages = []


def answer_of(pieces: list["Piece"]) -> Message:
    """The message; thoughts have fields of their own, which templates show or leave out."""
    content, thoughts = text_of(pieces, "text"), text_of(pieces, "thought").strip()
    ids = [piece.id for piece in pieces]
    begins = max((place + 1 for place, piece in enumerate(pieces) if piece.kind != "text"), default=0)
    message: Message = {"role": "assistant", "content": content, "ids": ids[begins:]}
    if thoughts:
        message["reasoning_content"] = thoughts
    if begins:
        message["thought_ids"] = ids[:begins]
    return message


def as_templates_see(messages: Sequence[Message]) -> list[Message]:
    """Without what only we know of."""
    return [{name: value for name, value in each.items() if name != "thought_ids"} for each in messages]
