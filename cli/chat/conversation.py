"""A conversation with a model: its messages and settings. This module has no terminal output.

If the messages no longer fit in the context, the oldest turns are left out of the prompt. The conversation keeps them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from localinfer.generation.pieces import Stats
from localinfer.generation.result import GenerationResult

if TYPE_CHECKING:
    from localinfer import Model, Piece
    from localinfer.sessions import Session

Message = dict[str, Any]


class Conversation:
    """The messages and settings of a chat.

    `settings` are options that differ from those of the model, such as the system prompt. An answer is added to the
    messages, and to the `session` if there is one, even if it is interrupted. The first `n_dropped` messages are
    left out of the prompt. `stats` are the statistics of the last answer.
    """

    def __init__(
        self, model: "Model", session: "Session | None" = None, tools: list[dict[str, Any]] | None = None
    ) -> None:
        self.model = model
        self.tools = tools
        self.settings: dict[str, Any] = {}
        self.n_dropped = 0
        self.stats = Stats()
        self.tool_results: list[str] = []  # results of the pending tool calls that the user has typed
        self.session = session
        self._messages: list[Message] = [dict(each) for each in session.messages] if session else []
        self._scored: tuple[list[int], list[Piece]] = [], []  # tokens of prompt and answer, scored pieces

    @property
    def messages(self) -> list[Message]:
        return self._messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._messages = messages
        self.tool_results = []
        self.n_dropped = min(self.n_dropped, len(messages))
        if self.session:
            self.session.replace_messages(messages)

    @property
    def system(self) -> str:
        return str(self.settings.get("system_prompt", self.model.options.system_prompt))

    @system.setter
    def system(self, text: str) -> None:
        self.settings["system_prompt"] = text

    @property
    def answer(self) -> str:
        """The last answer, or "" if there is none."""
        return str(self.messages[-1]["content"]) if self.messages else ""

    @property
    def answer_tokens(self) -> list[int]:
        """The tokens of the last answer, including its reasoning; empty if they are not known."""
        last = self.messages[-1] if self.messages else {}
        return [*last.get("reasoning_ids", ()), *last.get("ids", ())]

    @property
    def pending_tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls of the last answer, as long as they have no results."""
        calls = self.messages[-1].get("tool_calls") if self.messages else None
        return [call for call in calls if is_tool_call(call)] if isinstance(calls, list) else []

    def ask(self, text: str, prefix_ids: Sequence[int] = ()) -> Iterator["Piece"]:
        """Send a message and yield the pieces of the answer, which starts with the tokens `prefix_ids`.

        Close the iterator to stop the answer. Raises the errors of `Model.chat`.
        """
        return self._answer([{"role": "user", "content": text}], prefix_ids)

    def send_tool_results(self, results: list[str]) -> Iterator["Piece"]:
        """Send the results of the pending tool calls, in their order, and yield the answer like `ask`."""
        return self._answer(
            [
                {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}
                for call, result in zip(self.pending_tool_calls, results, strict=True)
            ]
        )

    def _answer(self, new: list[Message], prefix_ids: Sequence[int] = ()) -> Iterator["Piece"]:
        pieces: list[Piece] = []
        messages = self._fitting([*self.messages, *new])
        stream = self.model.stream_chat(messages, tools=self.tools, prefix_ids=prefix_ids, **self.settings)
        self.stats = stream.stats
        try:
            for piece in stream:
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                answer = GenerationResult.from_pieces(pieces, stream.stats).as_message()
                self.messages = [*self.messages, *new, answer]

    def _fitting(self, messages: list[Message]) -> list[Message]:
        """Return the messages for the prompt, without the oldest turns if they do not fit in the context."""
        if self.model.options.ctx_policy == "drop-turns":
            fitting = self.model.truncate_messages(messages[self.n_dropped :], tools=self.tools, **self.settings)
            self.n_dropped = len(messages) - len(fitting)
        return messages[self.n_dropped :]

    def score_answer(self, alternatives: int) -> list["Piece"]:
        """Return the tokens of the last answer with their probabilities and `alternatives` other candidates each.

        The result is empty if the tokens are not known. It is computed on the first call.
        """
        if not self.answer_tokens:
            return []
        before = self.messages[self.n_dropped : -1]
        prompt = self.model.render(before, tools=self.tools, **self.settings).ids
        if self._scored[0] != [*prompt, *self.answer_tokens]:
            pieces = self.model.score(prompt, self.answer_tokens, logprobs=alternatives)
            self._scored = [*prompt, *self.answer_tokens], pieces
        return self._scored[1]

    def undo(self) -> str:
        """Remove the last question and everything after it. Return the question, or "" if there was none."""
        questions = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            return ""
        question = self.messages[questions[-1]]
        self.messages = self.messages[: questions[-1]]
        return str(question["content"])

    def regenerate(self, prefix_ids: Sequence[int] = ()) -> Iterator["Piece"]:
        """Yield another answer to the last question, which starts with the tokens `prefix_ids`.

        It replaces the previous answer as soon as its first piece is generated.
        """
        before = self.messages
        question = self.undo()
        left = len(self.messages)
        try:
            yield from self.ask(question, prefix_ids)
        finally:
            if len(self.messages) == left:
                self.messages = before

    def switch_session(self, session: "Session") -> None:
        """Switch to another session. The current one remains as it was saved."""
        self.session, self.n_dropped, self.tool_results = session, 0, []
        self._messages = [dict(each) for each in session.messages]

    def clear(self) -> None:
        self.messages = []


def is_tool_call(entry: object) -> bool:
    """Return whether an entry is a valid tool call. Session files are untrusted."""
    match entry:
        case {"id": str(), "function": {"name": str(), "arguments": _}}:
            return True
    return False
