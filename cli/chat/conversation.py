"""A conversation with a model: its messages and settings. This module has no terminal output.

If the messages no longer fit in the context, the oldest turns are left out of the prompt. The conversation keeps them.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from cli.chat.attachments import Attachment
from cli.chat.display.answer_scores import AnswerScores
from cli.chat.prompt_window import Message, PromptWindow
from cli.terminal.interrupts import deferred_interrupts
from localinfer.errors import LocalInferError
from localinfer.generation.pieces import Stats
from localinfer.generation.result import GenerationResult
from localinfer.session_media import content_text, for_model, plain_text, store
from localinfer.sessions import History

if TYPE_CHECKING:
    from localinfer import Model, Piece
    from localinfer.sessions import Session


class Previous(NamedTuple):
    """A conversation that was left for a new one."""

    session: "Session | None"
    history: History
    system: str


class Conversation:
    """The messages and settings of a chat.

    `settings` are options that differ from those of the model, such as the system prompt. An answer is added to the
    messages, and to the `session` if there is one, even if it is interrupted. `window` tells which messages are left
    out of the prompt. `stats` are the statistics of the last answer. `tool_results` are results of the pending tool
    calls that the user has typed. If the session cannot be written, the conversation continues without it, and
    `unsaved` is the error; every later change saves what is missing. `media` has the contents of images and sounds that
    were added since the program began.
    """

    def __init__(
        self, model: "Model", session: "Session | None" = None, tools: list[dict[str, Any]] | None = None
    ) -> None:
        self.model = model
        self.tools = tools
        self.settings: dict[str, Any] = {}
        self.window = PromptWindow(self._count_excess)
        self.stats = Stats()
        self.previous: Previous | None = None
        self.unsaved: LocalInferError | None = None
        self.media: dict[str, bytes] = {}  # contents of images and sounds, by hash
        self._scores = AnswerScores()
        self.session: Session | None
        self.tool_results: list[str]
        self.history: History
        self._messages: list[Message]
        self._switch(session, session or History(), session.system if session else "")

    @property
    def messages(self) -> list[Message]:
        return self._messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._messages = messages
        self.tool_results = []
        self.window.n_dropped = min(self.window.n_dropped, len(messages))
        if self.session and not self.session.messages:
            self.session.system = self.system
        try:
            if self.session:
                store(messages, self.media)
            self.history.replace_messages(messages)
        except LocalInferError as error:
            self.unsaved = error
        else:
            self.unsaved = None

    @property
    def system(self) -> str:
        return str(self.settings.get("system_prompt", self.model.options.system_prompt))

    @system.setter
    def system(self, text: str) -> None:
        self.settings["system_prompt"] = text

    @property
    def answer(self) -> str:
        """The last answer, or "" if there is none."""
        return content_text(self.messages[-1]["content"]) if self.messages else ""

    @property
    def pending_tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls of the last answer, as long as they have no results."""
        calls = self.messages[-1].get("tool_calls") if self.messages else None
        return [call for call in calls if is_tool_call(call)] if isinstance(calls, list) else []

    def ask(
        self, text: str, prefix_ids: Sequence[int] = (), attachments: Sequence[Attachment] = ()
    ) -> Iterator["Piece"]:
        """Send a message and yield the pieces of the answer, which starts with the tokens `prefix_ids`. `attachments`
        are images and sounds before the text.

        Close the iterator to stop the answer. Raises the errors of `Model.chat`.
        """
        self.media |= {each.digest: each.content for each in attachments}
        parts = [each.part for each in attachments]
        content = [*parts, {"type": "text", "text": text}] if parts else text
        return self._answer([{"role": "user", "content": content}], prefix_ids)

    def send_tool_results(self, results: list[str]) -> Iterator["Piece"]:
        """Send the results of the pending tool calls, in their order, and yield the answer like `ask`."""
        return self._answer(
            [
                {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}
                for call, result in zip(self.pending_tool_calls, results, strict=True)
            ]
        )

    def _answer(
        self, new: list[Message], prefix_ids: Sequence[int] = (), before: Sequence[Message] | None = None
    ) -> Iterator["Piece"]:
        """Yield the answer to new messages behind those `before`, and then store both.

        By default they follow all messages that were answered, and are stored as soon as the answer begins.
        """
        stores_early = before is None
        before = answered(self.messages) if before is None else before
        pieces: list[Piece] = []
        messages = for_model(self.window.select([*before, *new]), self.media)
        stream = self.model.stream_chat(messages, tools=self.tools, prefix_ids=prefix_ids, **self.settings)
        self.stats = stream.stats
        try:
            for piece in stream:
                if not pieces:
                    self.window.confirm()
                    if stores_early:
                        self.messages = [*before, *new]  # so that a question is not lost if the program is killed
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                with deferred_interrupts():
                    answer = GenerationResult.from_pieces(pieces, stream.stats).as_message()
                    self.messages = [*before, *new, answer]

    def _count_excess(self, messages: Sequence[Message]) -> int:
        """Return how many of the messages do not fit in the context."""
        if self.model.options.ctx_policy != "drop-turns":
            return 0
        given = for_model(messages, self.media)
        return len(given) - len(self.model.truncate_messages(given, tools=self.tools, **self.settings))

    def score_answer(self, alternatives: int) -> list["Piece"]:
        """Return the tokens of the last answer with their probabilities and `alternatives` other candidates each.

        The result is empty if the tokens are not known. It is computed on the first call.
        """
        settings = {**self.settings, "tools": self.tools}
        messages = for_model(self.messages[self.window.n_dropped :], self.media)
        return self._scores.score(self.model, messages, settings, alternatives)

    def undo(self) -> str:
        """Remove the last question and everything after it. Return the question, or "" if there was none."""
        questions = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            return ""
        question = self.messages[questions[-1]]
        self.messages = self.messages[: questions[-1]]
        return plain_text(question["content"])

    def regenerate(self, prefix_ids: Sequence[int] = ()) -> Iterator["Piece"]:
        """Yield another answer to the last question, which starts with the tokens `prefix_ids`.

        It replaces the previous answer when it is complete, or stopped after its first piece.
        """
        at = max((n for n, message in enumerate(self.messages) if message["role"] == "user"), default=None)
        question = "" if at is None else self.messages[at]["content"]
        yield from self._answer([{"role": "user", "content": question}], prefix_ids, self.messages[:at])

    def switch_session(self, session: "Session") -> None:
        """Switch to another session. The current one remains as it was saved."""
        self._switch(session, session, session.system)

    def save_as(self, session: "Session") -> None:
        """Copy the conversation to a new session and continue there."""
        session.system = self.system
        store(self.messages, self.media)
        session.replace_messages(self.messages)
        self.session = self.history = session

    def start_over(self, session: "Session | None") -> None:
        """Start a new conversation in a new session, or in none. `go_back` returns to this one."""
        self.previous = Previous(self.session, self.history, self.system)
        self._switch(session, session or History())

    def go_back(self) -> bool:
        """Return to the conversation before `start_over`. Return False if there is none."""
        if self.previous is None:
            return False
        session, history, self.system = self.previous
        self.previous = None
        self._switch(session, history)
        return True

    def restore(self, number: int) -> bool:
        """Restore the messages before the latest removal, or before the `number`-th latest one.

        Versions that the conversation still contains do not count. Return False if there is none.
        """
        version = next(islice(self.history.removed_versions(), number - 1, None), None)
        if version is None:
            return False
        self.messages = [dict(each) for each in version]
        return True

    def _switch(self, session: "Session | None", history: History, system: str | None = None) -> None:
        """Continue with another history, and with another system prompt unless it is None; "" for that of the model."""
        self.session, self.history, self.window.n_dropped, self.tool_results = session, history, 0, []
        self._messages = [dict(each) for each in history.messages]
        if system is not None:
            self.settings.pop("system_prompt", None)
        if system:
            self.system = system


def answered(messages: list[Message]) -> list[Message]:
    """Return the messages without a last question that the program was killed before it could answer."""
    return messages[:-1] if messages and messages[-1]["role"] == "user" else messages


def is_tool_call(entry: object) -> bool:
    """Return whether an entry is a valid tool call. Session files are untrusted."""
    match entry:
        case {"id": str(), "function": {"name": str(), "arguments": _}}:
            return True
    return False
