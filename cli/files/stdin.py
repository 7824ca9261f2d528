"""Reading the prompt from stdin.

If a command already has a prompt from an argument or a file, stdin is read only if it is meant for this command: a
file, or a pipe with data. It is not read if it is also the stdin of the parent shell, as in a `while read` loop, or if
no data arrives: a parent process may keep a pipe open to which it never writes.
"""

import os
import select
import stat
import sys
from pathlib import Path

from cli.terminal import screen, windows_console
from localinfer.errors import LocalInferError

TEXT_LIMIT = 64 << 20  # bytes; much more than the longest context
FIRST_BYTE_TIMEOUT = 2.0  # seconds
SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ash", "busybox"}


def read_stdin() -> str | None:
    """Return all of stdin without one trailing newline, or None if stdin is a terminal, closed or /dev/null.

    Invalid UTF-8 is replaced by U+FFFD, with a warning. Raises LocalInferError if the text is too long.
    """
    if not is_piped():
        return None
    content = check_size(sys.stdin.buffer.read(TEXT_LIMIT + 1), "stdin")
    text = content.decode("utf-8", "replace")
    if text.encode() != content:
        screen.warn("stdin is not valid UTF-8: invalid bytes are replaced by U+FFFD")
    return strip_newline(text)


def read_extra_stdin() -> str | None:
    """Return stdin for a command that already has a prompt; None if stdin is empty or not meant for this command."""
    if not is_piped():
        return None
    if is_shared_with_shell():
        if has_input(0):
            screen.note_dim("stdin is shared with the shell and was not read; use -f - to read it")
        return None
    if not has_input(FIRST_BYTE_TIMEOUT):
        screen.warn("no data on stdin within 2 s: not read; use -f - to wait for it, or --no-stdin to ignore it")
        return None
    return read_stdin() or None


def is_piped() -> bool:
    """Return whether stdin is a pipe, a file or a socket, not a terminal or /dev/null and not closed."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def is_shared_with_shell() -> bool:
    """Return whether the parent process is a shell with the same stdin; False if the system does not report it."""
    parent = Path(f"/proc/{os.getppid()}")
    try:
        is_shell = (parent / "comm").read_text().strip() in SHELLS
        return is_shell and os.path.samestat((parent / "fd" / "0").stat(), os.fstat(sys.stdin.fileno()))
    except OSError:
        return False


def has_input(seconds: float) -> bool:
    """Return whether stdin has data or ends within `seconds`; True if that cannot be known."""
    try:
        return bool(select.select([sys.stdin], [], [], seconds)[0])
    except (OSError, ValueError):  # Windows can only poll sockets
        return windows_console.has_input(sys.stdin.fileno(), seconds)


def check_size(content: bytes, name: str) -> bytes:
    if len(content) > TEXT_LIMIT:
        raise LocalInferError(f"{name}: prompt is longer than {TEXT_LIMIT:,} bytes")
    return content


def strip_newline(text: str) -> str:
    """Remove one trailing newline, as files and `echo` add it."""
    return text.removesuffix("\n").removesuffix("\r")
