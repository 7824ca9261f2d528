"""Where messages are typed on a terminal: several lines, a history of all chats, completion, the user's own editor.

    Enter       send                    Ctrl-R    search what was typed before
    Alt-Enter   another line            Ctrl-G    write it in $VISUAL or $EDITOR
    Tab         complete a command, or the path behind one
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from cli import screen
from cli.chat.commands import NAMES
from cli.chat.reader import CONTINUATION, PROMPT, is_unfinished, message_of
from localinfer import paths, sessions
from localinfer.errors import LocalInferError

STYLE = Style.from_dict({"": "bold", "prompt": "bold ansicyan"})


class Editor:
    def __init__(self) -> None:
        self.session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            multiline=True,
            prompt_continuation=continuation,
            key_bindings=keys(),
            history=history(),
            completer=Words(),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            tempfile_suffix=".md",
            style=STYLE,
            reserve_space_for_menu=0,
            output=output(),
            color_depth=None if screen.colourful() else ColorDepth.DEPTH_1_BIT,
        )

    def read(self, draft: str = "") -> str | None:
        while True:
            try:
                return message_of(self.session.prompt(default=draft))
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self.session.default_buffer.text:
                    raise
                draft = ""


def continuation(width: int, line: int, is_wrapped: int) -> str:  # noqa: ARG001  # as prompt_toolkit calls it
    return "" if is_wrapped else CONTINUATION


def output() -> Vt100_Output | None:
    """The terminal, be it stdout or stderr; None is prompt_toolkit's own choice, for Windows.

    It is not asked where its cursor is: the answer may come when nobody listens any more.
    """
    if os.name != "posix":
        return None
    stream = sys.stdout if sys.stdout.isatty() else sys.stderr
    terminal = Vt100_Output.from_pty(stream, term=os.environ.get("TERM"))
    terminal.enable_cpr = False
    return terminal


def keys() -> KeyBindings:
    bindings = KeyBindings()
    typing = has_focus("DEFAULT_BUFFER")

    @bindings.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.text):
            buffer.cursor_position = len(buffer.text)
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-g", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    return bindings


class Words(Completer):
    """Commands, and paths or names of sessions behind those that want one."""

    paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        command, space, argument = text.partition(" ")
        if not text.startswith("/"):
            return
        if not space:
            yield from (Completion(name, -len(text)) for name in NAMES if name.startswith(text.lower()))
            yield from self.paths.get_completions(Document(text), event)
        elif NAMES.get(command.lower()) == "PATH":
            yield from self.paths.get_completions(Document(argument), event)
        elif NAMES.get(command.lower()) == "SESSION":
            yield from (Completion(name, -len(argument)) for name in sessions.names() if name.startswith(argument))


def history() -> History:
    """Of all chats, in a file that nobody else can read; of this one alone where that cannot be."""
    path = paths.data_dir() / "history"
    try:
        paths.private_directory(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except (OSError, LocalInferError) as error:
        screen.warn(f"what is typed here is not remembered: {error}")
        return InMemoryHistory()
    return Remembered(path)


class Remembered(FileHistory):
    """A disk that is full does not end a conversation."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)
