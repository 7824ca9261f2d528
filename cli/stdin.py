"""stdin as a text: what was piped in, or the file that it is.

Where a command has its text already, stdin may be one more, or no concern of ours. It is ours if it was made for us: a
pipe that holds something, or a file. It is not if the shell that started us reads it, too, as in a `while read` loop,
or if nothing comes: a program that starts us may keep a pipe open that it never writes to.
"""

import os
import select
import stat
import sys
from pathlib import Path

from cli import screen
from localinfer.errors import LocalInferError

TEXT_LIMIT = 64 << 20  # bytes; far more than any context holds
PATIENCE = 2.0  # seconds to wait for the first byte of a text that may never come
SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ash", "busybox"}


def from_stdin() -> str | None:
    """Everything, less one newline at its end; None when stdin is a terminal or nothing at all.

    It may come from a program that cannot be mended: what is not UTF-8 is replaced, with a warning.
    """
    if not is_piped():
        return None
    content = limited(sys.stdin.buffer.read(TEXT_LIMIT + 1), "stdin")
    text = content.decode("utf-8", "replace")
    if text.encode() != content:
        screen.warn("stdin is not UTF-8: what cannot be read is replaced by U+FFFD")
    return without_newline(text)


def more_from_stdin() -> str | None:
    """What there is for a command that has a text already; None for nothing, or if stdin is not ours."""
    if not is_piped():
        return None
    if is_the_shells():
        if holds_something(0):
            screen.aside("stdin is left to the shell, which reads it, too; -f - would read it")
        return None
    if not holds_something(PATIENCE):
        screen.warn("stdin is a pipe that nothing comes from: not read; -f - waits for it, --no-stdin never does")
        return None
    return from_stdin() or None


def is_piped() -> bool:
    """A pipe, a file or a socket; not a terminal, not /dev/null, and not closed."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def is_the_shells() -> bool:
    """Whether our parent is a shell whose stdin is the very same; false where the system does not tell."""
    parent = Path(f"/proc/{os.getppid()}")
    try:
        is_shell = (parent / "comm").read_text().strip() in SHELLS
        return is_shell and os.path.samestat((parent / "fd" / "0").stat(), os.fstat(sys.stdin.fileno()))
    except OSError:
        return False


def holds_something(seconds: float) -> bool:
    """Whether a byte, or the end, comes within this time. Where that cannot be known it is said to."""
    try:
        return bool(select.select([sys.stdin], [], [], seconds)[0])
    except (OSError, ValueError):  # Windows only knows it of sockets
        return True


def limited(content: bytes, name: str) -> bytes:
    if len(content) > TEXT_LIMIT:
        raise LocalInferError(f"{name}: a prompt of more than {TEXT_LIMIT:,} bytes")
    return content


def without_newline(text: str) -> str:
    """Files and `echo` end in a newline that nobody means."""
    return text.removesuffix("\n").removesuffix("\r")
