"""Texts that a user hands in: as an argument, in a file, or piped into stdin."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

from cli import screen
from localinfer.errors import LocalInferError, UsageError

TEXT_LIMIT = 64 << 20  # bytes; far more than any context holds


def joined(argument: str | None, file: str | None) -> str:
    """What was given, in this order and joined by newlines: the argument, the file, stdin.

    UsageError when nothing was given; an empty text is a text.
    """
    texts = [
        argument and from_argument(argument),
        from_file(file) if file not in (None, "-") else None,
        from_stdin(),
    ]
    given = [text for text in texts if text is not None]
    if not given:
        raise UsageError("no prompt: give -p TEXT or -f FILE, or pipe one into stdin")
    return "\n".join(given)


def from_argument(argument: str) -> str:
    """Bytes of an argument that are not UTF-8 reach Python as lone surrogates: U+FFFD takes their place."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def from_file(name: str) -> str:
    """A file's text, less one newline at its end."""
    try:
        with Path(name).open("rb") as handle:
            content = limited(handle.read(TEXT_LIMIT + 1), name)
        return without_newline(content.decode("utf-8-sig"))
    except OSError as error:
        raise LocalInferError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{name}: not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # a NUL in the name
        raise LocalInferError(f"{name}: {error}") from None


def from_stdin() -> str | None:
    """What was piped in, less one newline at its end; None when stdin is a terminal or nothing at all.

    It may come from a program that cannot be mended: what is not UTF-8 is replaced, with a warning.
    """
    if not is_piped():
        return None
    content = limited(sys.stdin.buffer.read(TEXT_LIMIT + 1), "stdin")
    text = content.decode("utf-8", "replace")
    if text.encode() != content:
        screen.warn("stdin is not UTF-8: what cannot be read is replaced by U+FFFD")
    return without_newline(text)


def from_json(name: str) -> Any:
    """The value in a JSON file, or in what was piped in, for `-`."""
    text = from_stdin() if name == "-" else from_file(name)
    if text is None:
        raise UsageError("nothing to read: stdin is no pipe")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LocalInferError(f"{'stdin' if name == '-' else name}: no JSON: {error}") from None


def is_piped() -> bool:
    """A pipe, a file or a socket; not a terminal, not /dev/null, and not closed."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def limited(content: bytes, name: str) -> bytes:
    if len(content) > TEXT_LIMIT:
        raise LocalInferError(f"{name}: a prompt of more than {TEXT_LIMIT:,} bytes")
    return content


def without_newline(text: str) -> str:
    """Files and `echo` end in a newline that nobody means."""
    return text.removesuffix("\n").removesuffix("\r")
