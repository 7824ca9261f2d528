"""The line editor for messages: multi-line input, history across chats, completion and an external editor.

Enter       send                    Ctrl-R    search the history
Alt-Enter   start a new line        Ctrl-G    edit in $VISUAL or $EDITOR
Tab         complete a command, or its path, session, model or option
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
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

from cli.chat.input.input_display import InputDisplay
from cli.chat.input.message_input import CONTINUATION, PROMPT, is_unfinished, unwrap_message
from cli.chat.slash_commands.commands import NAMES
from cli.chat.slash_commands.model_commands import local_models
from cli.terminal import screen
from localinfer import paths, sessions
from localinfer.errors import LocalInferError
from localinfer.options import FLAGS

TERMINATING_SIGNALS = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
STYLE = Style.from_dict({"": "bold", "prompt": "bold ansicyan"})


class Editor:
    def __init__(self) -> None:
        self.session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            multiline=True,
            prompt_continuation=continuation,
            key_bindings=key_bindings(),
            history=history(),
            completer=CommandCompleter(),
            input_processors=[InputDisplay()],
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            tempfile_suffix=".md",
            style=STYLE,
            reserve_space_for_menu=0,
            output=terminal_output(),
            color_depth=None if screen.has_color() else ColorDepth.DEPTH_1_BIT,
        )
        self.n_keys = 0  # keys pressed since the start of `read`
        self.session.app.key_processor.before_key_press += self._count_key

    @property
    def has_other_keys(self) -> bool:
        return self.n_keys > 1  # Ctrl-C is one of them

    def _count_key(self, _: object) -> None:
        self.n_keys += 1

    def read(self, draft: str = "") -> str | None:
        self.n_keys = 0
        while True:
            try:
                return unwrap_message(prompt_until_signal(self.session, draft))
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self.session.default_buffer.text:
                    raise
                draft = ""


def prompt_until_signal(session: PromptSession[str], draft: str) -> str:
    """Show the prompt and return the input. If a signal ends the program, restore the terminal first.

    The handlers of the program raise SystemExit. Inside a task of the event loop, prompt_toolkit would take that for an
    error of its own, print it and wait for a key, so a signal asks the application to exit instead.
    """
    app, received = session.app, list[int]()

    def leave() -> None:
        if received and app.future is not None and not app.future.done():
            app.exit(exception=EOFError)

    def handle(number: int, _: object) -> None:
        received.append(number)
        if app.loop is not None:
            app.loop.call_soon_threadsafe(leave)

    previous = {number: signal.getsignal(number) for number in TERMINATING_SIGNALS}
    handled = [number for number, handler in previous.items() if callable(handler)]  # nohup ignores SIGHUP
    try:
        for number in handled:
            signal.signal(number, handle)
        return session.prompt(default=draft, pre_run=leave)
    finally:
        for number in handled:
            signal.signal(number, previous[number])
        if received:
            raise SystemExit(128 + received[0])


def continuation(width: int, line: int, is_wrapped: int) -> str:  # noqa: ARG001  # the signature of prompt_toolkit
    return "" if is_wrapped else CONTINUATION


def terminal_output() -> Vt100_Output | None:
    """Return the output for prompt_toolkit: the terminal on stdout or stderr, or None (its default) on Windows.

    Cursor position requests are disabled, because the reply of the terminal may arrive after the prompt has ended.
    """
    if os.name != "posix":
        return None
    stream = sys.stdout if sys.stdout.isatty() else sys.stderr
    terminal = Vt100_Output.from_pty(stream, term=os.environ.get("TERM"))
    terminal.enable_cpr = False
    return terminal


def key_bindings() -> KeyBindings:
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


ARGUMENTS: dict[str, Callable[[], Iterable[str]]] = {
    "SESSION": sessions.list_names, "MODEL": local_models, "OPTION": lambda: [*FLAGS],
}  # fmt: skip


class CommandCompleter(Completer):
    """Completes commands, and the path or name that a command takes. Paths come behind commands."""

    paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        command, space, argument = text.partition(" ")
        if not text.startswith("/"):
            return
        if not space and (names := [name for name in NAMES if name.startswith(text.lower())]):
            yield from (Completion(name, -len(text)) for name in names)
        elif not space:  # a message that begins with a path
            yield from self.paths.get_completions(Document(text), event)
        elif NAMES.get(command.lower()) == "PATH":
            yield from self.paths.get_completions(Document(argument), event)
        else:
            values = ARGUMENTS.get(NAMES.get(command.lower(), ""), list)()
            yield from (Completion(value, -len(argument)) for value in values if value.startswith(argument))


def history() -> History:
    """Return the input history of all chats, in a private file, or an in-memory history if the file is not writable."""
    path = paths.data_dir() / "history"
    try:
        paths.private_directory(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except (OSError, LocalInferError) as error:
        screen.warn(f"the input history is not saved: {error}")
        return InMemoryHistory()
    return SafeFileHistory(path)


class SafeFileHistory(FileHistory):
    """A file history that ignores I/O errors, such as a full disk."""

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
