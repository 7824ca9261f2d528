"""The token ids of earlier answers with tool calls, so that later prompts repeat them exactly.

Clients send calls back without token ids, and a chat template renders them in one canonical form. A model may have
written another one; then its own call, and everything after it, would have to be read again.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

LIMIT = 1000  # answers
ID_FIELDS = ("ids", "reasoning_ids")


class AnswerMemory:
    """The latest answers with tool calls of one server, by model and the id of their first call."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], Message] = OrderedDict()

    def add(self, model_name: str, call_id: str, answer: Message) -> None:
        """Add an answer, as `GenerationResult.as_message` returns it. `call_id` is the id that the client received."""
        self._answers[model_name, call_id] = answer
        if len(self._answers) > LIMIT:
            self._answers.popitem(last=False)

    def with_token_ids(self, model_name: str, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, with token ids in those that are answers of this model and unchanged."""
        return [self._with_token_ids(model_name, message) for message in messages]

    def _with_token_ids(self, model_name: str, message: Message) -> Message:
        calls = message.get("tool_calls")
        if not calls:
            return message
        key = model_name, calls[0]["id"]
        answer = self._answers.get(key)
        if not answer or called(answer) != called(message):
            return message
        self._answers.move_to_end(key)
        return {**message, **{name: answer[name] for name in ID_FIELDS if name in answer}}


def called(message: Message) -> list[Any]:
    """Return the names and arguments of the calls of a message."""
    return [call["function"] for call in message["tool_calls"]]
