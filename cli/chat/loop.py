"""The loop of a chat: what is typed becomes a command or a question, and its answer is shown while it comes."""

import contextlib
import importlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cli import screen
from cli.chat import answer, commands
from cli.chat.conversation import Conversation
from cli.chat.reader import Lines, Reader
from cli.chat.status import status_line
from cli.chat.tools import Toolbox, shown_call
from cli.chat.transcript import Transcript
from cli.generate import statistics, with_control
from cli.surprise import painter
from localinfer.errors import ContextOverflow, LocalInferError

if TYPE_CHECKING:
    from cli.surprise import ColorBy
    from localinfer import Model, Piece
    from localinfer.sessions import Session

HINT = "Ctrl-C once more, Ctrl-D or /exit leaves."
LOOP = "The answer repeats itself: Ctrl-C stops it. A higher --temp or --repeat-penalty may help."
RESULT = "{} has not been run: what you type next is its result. /undo forgets the call."
MOST_ROUNDS, SAME_ROUNDS = 20, 4  # of calls and results for one question, and of such as are all the same
CALL_LOOP = "The same call again and again: it is not run any more."
FULL = "The context is full: the answer ends here. /undo makes room, /clear begins anew."


class Chat:
    """A conversation in a terminal, or one question and its answer."""

    def __init__(self, model: "Model", name: str, *, plain: bool = False, quiet: bool = False, special: bool = False,
                 transcript: Transcript | None = None, session: "Session | None" = None,
                 tools: Toolbox | None = None, color_by: "ColorBy | None" = None) -> None:
        self.model = model
        self.name = name
        self.plain = plain
        self.quiet = quiet
        self.special = special
        self.transcript = transcript
        self.conversation = Conversation(model, session, tools.schemas if tools else None)
        self.tools = tools
        self.painter = painter(color_by)
        if self.painter:
            self.conversation.settings["logprobs"] = max(1, model.options.logprobs)
        self.files: list[str] = []  # what goes in front of the next message
        self.draft = ""  # of the next message
        self.is_over = False
        self.talking = False
        self.used = 0  # tokens of the context

    def talk(self, *, once: bool = False) -> None:
        """Until the user leaves, or has had `once` an answer. A first Ctrl-C that finds nothing to stop only tells how
        to leave.
        """
        self.talking = True
        lines = reader()
        if not self.plain and sys.stdout.isatty():
            threading.Thread(target=importlib.import_module, args=["cli.chat.markdown"], daemon=True).start()
        warned = False
        while not self.is_over and not (once and self.conversation.messages):
            try:
                if self._turn(lines):
                    warned = False
            except KeyboardInterrupt:
                if warned:
                    raise
                warned = True
                screen.aside(HINT)

    def _turn(self, lines: Reader) -> bool:
        """One line of the user's; False if there was nothing in it."""
        draft, self.draft = self.draft, ""
        typed = lines.read(draft)
        if typed is None:
            self.is_over = True
        elif typed.startswith("/") and commands.run(self, typed):
            pass
        elif typed.strip():
            self.try_to_say(typed)
        return bool(typed and typed.strip())

    def try_to_say(self, message: str) -> None:
        """What cannot be answered ends neither the program nor the conversation so far."""
        try:
            self.say(message)
        except LocalInferError as error:
            hint = " (/undo makes room, /clear begins anew)" if isinstance(error, ContextOverflow) else ""
            screen.error(f"{error}{hint}", error.exit_code)

    def say(self, message: str) -> None:
        """Ask, and show the answer. Raises what `Model.chat` raises."""
        text = "\n".join([*self.files, message])
        self.files.clear()
        before, left_out = len(self.conversation.messages), self.conversation.left_out
        if calls := self.conversation.open_calls:
            self.conversation.results.append(text)
            if len(self.conversation.results) < len(calls):
                self._ask_for_results()
                return
            results, self.conversation.results = self.conversation.results, []
            self.show(self.conversation.tell(results))
        else:
            self.show(self.conversation.ask(text))
        if self.conversation.left_out > left_out:
            screen.aside(f"The first {self.conversation.left_out} messages no longer fit: the model does not see them.")
        if self.transcript and len(self.conversation.messages) > before:
            self.transcript.add(text, self.conversation.answer)

    def show(self, pieces: Iterator["Piece"]) -> None:
        """Show an answer while it comes, and what comes of the calls of tools in it."""
        self._show(pieces)
        said: list[object] = []
        while (calls := self._shown_calls()) and self.tools and self.tools.command and len(said) < MOST_ROUNDS:
            said.append([call["function"] for call in calls])
            if said[-SAME_ROUNDS:] == SAME_ROUNDS * said[-1:]:
                screen.aside(CALL_LOOP)
                break
            results = [self.tools.result(call) for call in calls]
            self._show(self.conversation.tell(results))
        self._ask_for_results()

    def _shown_calls(self) -> list[dict[str, Any]]:
        calls = self.conversation.open_calls
        for call in calls:
            screen.aside(shown_call(call))
        return calls

    def _ask_for_results(self) -> None:
        """Nobody runs what is still open: the user can say what comes of it."""
        calls = self.conversation.open_calls
        if calls and self.talking:
            screen.aside(RESULT.format(calls[len(self.conversation.results)]["function"]["name"]))

    def _show(self, pieces: Iterator["Piece"]) -> None:
        """An interrupt ends the answer; what had come stays said."""
        view = answer.view(plain=self.plain, lines_between=self.talking, painter=self.painter)
        began = time.monotonic()
        first = 0.0
        pieces = with_control(self.model, pieces) if self.special else pieces
        try:
            with screen.without_echo(), contextlib.closing(watched(pieces, view)) as run:  # type: ignore[type-var]
                try:
                    for piece in run:
                        first = first or time.monotonic() - began
                        view.take(piece)
                finally:
                    if first:
                        view.end()
        except KeyboardInterrupt:
            screen.erase_progress()
            if not self.talking:
                raise
        except ContextOverflow:
            if not self.talking or not first:
                raise
            screen.warn(FULL)
        self._tell(first)

    def _tell(self, first: float) -> None:
        """How it went."""
        stats = self.model.stats
        self.used = stats.prompt_tokens + stats.generated_tokens
        if self.quiet:
            return
        if self.talking:
            columns = shutil.get_terminal_size().columns
            screen.aside(status_line(self.name, stats, self.model.n_ctx, first, columns))
        else:
            screen.aside(statistics(stats))


def reader() -> Reader:
    if screen.is_live() and sys.stdin.isatty() and shutil.get_terminal_size().columns >= answer.NARROWEST:
        from cli.chat.editor import Editor

        return Editor()
    return Lines()


def watched(pieces: Iterator["Piece"], view: answer.View) -> Iterator["Piece"]:
    """The same pieces. When they begin to go round in circles, the user is told."""
    from localinfer.generation.loops import LoopWatch

    watch = LoopWatch()
    with contextlib.closing(pieces):  # type: ignore[type-var]
        for piece in pieces:
            yield piece
            if watch.push(piece.id):
                view.note(LOOP)
