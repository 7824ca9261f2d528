"""Where messages are typed: an editor on a terminal that can have one, a plain line elsewhere.

A message ends with Enter, unless the line ends in a backslash or a block of triple quotes is open.
"""

import contextlib
import sys
from typing import Protocol

from cli import screen
from cli.stdin import without_newline

QUOTES = '"""'
PROMPT, CONTINUATION = "> ", ". "


class Reader(Protocol):
    def read(self, draft: str = "") -> str | None:
        """The next message, which the user may make from the draft; None when they leave with Ctrl-D.

        KeyboardInterrupt when Ctrl-C finds nothing typed; otherwise that is forgotten.
        """


def is_unfinished(text: str) -> bool:
    """Whether Enter begins another line of it."""
    return text.endswith("\\") or (text.lstrip().startswith(QUOTES) and text.count(QUOTES) < 2)


def message_of(text: str) -> str:
    """Without what only says that there is another line."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        inside, _, behind = stripped.removeprefix(QUOTES).partition(QUOTES)
        return inside.strip("\n") + behind
    return text.replace("\\\n", "\n").removesuffix("\\").rstrip("\n")


class Lines:
    """Line by line, with what Python's `readline` has to offer."""

    def read(self, draft: str = "") -> str | None:
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
                if not text and not half_typed():
                    raise
                text = ""
                continue
            if not is_unfinished(text):
                return message_of(text)
            text += "\n"


def half_typed() -> str:
    """What stands in the line that Ctrl-C has ended."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline else ""


def read_line(prompt: str) -> str:
    """A file as stdout stays clean."""
    with contextlib.suppress(ImportError):
        import readline  # importing it is what gives `input` its line editing

        readline.parse_and_bind("set enable-bracketed-paste on")
    if sys.stdout.isatty():
        return without_newline(input(prompt))
    screen.note(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return without_newline(line)
