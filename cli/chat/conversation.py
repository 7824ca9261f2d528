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

    def __init__(
        self, model: "Model", session: "Session | None" = None, tools: list[dict[str, Any]] | None = None
    ) -> None:
        self.model = model
        self.tools = tools
        self.settings: dict[str, Any] = {}
        self.left_out = 0
        self.results: list[str] = []  # of the open calls, as far as the user has typed them
        self.session = session
        self._messages: list[Message] = [dict(each) for each in session.messages] if session else []
        self._scored: tuple[list[int], list[Piece]] = [], []  # all tokens of prompt and answer, and those of the answer

    @property
    def messages(self) -> list[Message]:
        return self._messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._messages = messages
        self.results = []
        self.left_out = min(self.left_out, len(messages))
        if self.session:
            self.session.become(messages)

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

    @property
    def open_calls(self) -> list[dict[str, Any]]:
        """The calls of tools in the last answer, as long as nobody has told their results."""
        calls = self.messages[-1].get("tool_calls") if self.messages else None
        return [call for call in calls if is_call(call)] if isinstance(calls, list) else []

    def ask(self, text: str, begun: Sequence[int] = ()) -> Iterator["Piece"]:
        """The answer, piece by piece, which may have `begun` with some tokens; close the iterator to stop it. Raises
        what `Model.chat` raises.
        """
        return self._answer([{"role": "user", "content": text}], begun)

    def tell(self, results: list[str]) -> Iterator["Piece"]:
        """The answer to the results of the open calls, in their order; otherwise as `ask`."""
        return self._answer([
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}
            for call, result in zip(self.open_calls, results, strict=True)
        ])

    def _answer(self, new: list[Message], begun: Sequence[int] = ()) -> Iterator["Piece"]:
        pieces: list[Piece] = []
        try:
            shown = self._shown([*self.messages, *new])
            for piece in self.model.chat(shown, tools=self.tools, begun=begun, **self.settings):
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                self.messages = [*self.messages, *new, answer_of(pieces)]

    def _shown(self, messages: list[Message]) -> list[Message]:
        """What the model sees of them: whole oldest turns go, where they would leave no room for an answer."""
        if self.model.options.ctx_policy == "drop-turns":
            fitting = self.model.fitting(messages[self.left_out :], tools=self.tools, **self.settings)
            self.left_out = len(messages) - len(fitting)
        return messages[self.left_out :]

    def scored(self, alternatives: int) -> list["Piece"]:
        """The last answer token by token, with probabilities and so many alternatives each; nothing where its tokens
        are not known. It is computed when it is first asked for: until then it costs nothing.
        """
        if not self.written:
            return []
        before = self.messages[self.left_out : -1]
        prompt = self.model.render(before, tools=self.tools, **self.settings).ids
        if self._scored[0] != [*prompt, *self.written]:
            pieces = self.model.score(prompt, self.written, logprobs=alternatives)
            self._scored = [*prompt, *self.written], pieces
        return self._scored[1]

    def undo(self) -> str:
        """Forget the last question and all that came of it. The question; "" if there was none."""
        asked = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            return ""
        question = self.messages[asked[-1]]
        self.messages = self.messages[: asked[-1]]
        return str(question["content"])

    def regenerate(self, begun: Sequence[int] = ()) -> Iterator["Piece"]:
        """Another answer to the last question, which may have `begun`; it takes the place of the one before as soon as
        it begins.
        """
        before = self.messages
        question = self.undo()
        left = len(self.messages)
        try:
            yield from self.ask(question, begun)
        finally:
            if len(self.messages) == left:
                self.messages = before

    def take_up(self, session: "Session") -> None:
        """Go on with another conversation; this one stays where it was saved."""
        self.session, self.left_out, self.results = session, 0, []
        self._messages = [dict(each) for each in session.messages]

    def clear(self) -> None:
        self.messages = []


def is_call(entry: object) -> bool:
    """A session may come from anywhere."""
    match entry:
        case {"id": str(), "function": {"name": str(), "arguments": _}}:
            return True
    return False


def answer_of(pieces: list["Piece"]) -> Message:
    """The message; thoughts and calls have fields of their own, which templates show or leave out. So have the tokens:
    `ids` are those of the content and of calls, as far as they come behind all else, `thought_ids` the others.
    """
    content, thoughts = text_of(pieces, "text"), text_of(pieces, "thought").strip()
    calls = [call.as_entry() for piece in pieces for call in piece.calls]
    ids = [piece.id for piece in pieces]
    begins = max((place + 1 for place, piece in enumerate(pieces) if piece.kind != "text"), default=0)
    if content != text_of(pieces[begins:], "text"):
        begins = len(pieces)
    message: Message = {"role": "assistant", "content": content}
    if begins < len(pieces):
        message["ids"] = ids[begins:]
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    if begins:
        message["thought_ids"] = ids[:begins]
    return message
