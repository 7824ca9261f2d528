"""Input of messages: the interface, and a plain line input for streams without a line editor.

Enter ends a message, unless the line ends in a backslash or a block in triple quotes is open.
"""

import contextlib
import sys
from typing import Protocol

from cli.files.stdin import strip_newline
from cli.terminal import screen

QUOTES = '"""'
PROMPT, CONTINUATION = "> ", ". "


class MessageInput(Protocol):
    @property
    def has_other_keys(self) -> bool:
        """Whether keys other than Ctrl-C were pressed in the last `read`."""

    def read(self, draft: str = "") -> str | None:
        """Read the next message, with `draft` as its initial text; None for Ctrl-D.

        Ctrl-C discards the typed text. Raises KeyboardInterrupt if there is none.
        """


def is_unfinished(text: str) -> bool:
    """Return whether Enter continues the message on a new line."""
    return text.endswith("\\") or (text.lstrip().startswith(QUOTES) and text.count(QUOTES) < 2)


def unwrap_message(text: str) -> str:
    """Remove triple quotes and line-continuation backslashes."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        inside, _, behind = stripped.removeprefix(QUOTES).partition(QUOTES)
        return inside.strip("\n") + behind
    return text.replace("\\\n", "\n").removesuffix("\\").rstrip("\n")


class LineInput:
    """Plain line input with Python's `readline`. Keys that leave the line empty go unnoticed."""

    has_other_keys = False

    def read(self, draft: str = "") -> str | None:
        self.has_other_keys = False
        if draft:
            screen.note(f"(was: {screen.one_line(draft)})")
        text = ""
        while True:
            try:
                text += read_line(CONTINUATION if text else PROMPT)
            except EOFError:
                screen.note("")
                return None
            except KeyboardInterrupt:
                screen.note("")
                if not text and not partial_line():
                    raise
                text, self.has_other_keys = "", True
                continue
            if not is_unfinished(text):
                return unwrap_message(text)
            text += "\n"


def partial_line() -> str:
    """Return the text of the line that Ctrl-C interrupted."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline else ""


def read_line(prompt: str) -> str:
    """Read a line. If stdout is a file, the prompt goes to stderr."""
    with contextlib.suppress(ImportError):
        import readline  # the import enables line editing in `input`

        readline.parse_and_bind("set enable-bracketed-paste on")
    if sys.stdout.isatty():
        return strip_newline(input(prompt))
    screen.note(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return strip_newline(line)
