"""Text input of commands: prompts from an argument, a file and stdin."""

import codecs
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.files.stdin import TEXT_LIMIT, check_size, read_extra_stdin, read_stdin, strip_newline
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Layer

STDIN = "-"  # as an argument or a file name
ESCAPE = rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])"
UNESCAPED_OPTIONS = {"stop", "dry_sequence_breaker"}  # options
CONTROL_CHARACTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def prompt_texts(words: Sequence[str] | None, options: Sequence[str] | None) -> list[str]:
    """Return the texts of a prompt: the words of the positional argument, joined by spaces, and the values of -p."""
    return [*([" ".join(words)] if words else []), *(options or ())]


def read_prompt(
    arguments: Sequence[str], files: Sequence[str], *, escapes: bool | None = None, with_stdin: bool = True
) -> str:
    """Return the prompt: arguments, files and stdin, in this order and joined by newlines.

    With `escapes`, escape sequences such as \\n in arguments and files are replaced. Raises UsageError if there is no
    prompt. An empty prompt is valid.
    """
    text = read_optional_prompt(arguments, files, escapes=escapes, with_stdin=with_stdin)
    if text is None:
        raise UsageError("no prompt: use -p TEXT or -f FILE, or pipe a prompt into stdin")
    return text


def read_optional_prompt(
    arguments: Sequence[str], files: Sequence[str], *, escapes: bool | None = None, with_stdin: bool = True
) -> str | None:
    """Return the prompt as `read_prompt` does, or None if there is none."""
    texts = [decode_argument(each, hint=escapes is None) for each in arguments if each != STDIN]
    texts += [read_text_file(name) for name in files if name != STDIN]
    if escapes:
        texts = [unescape(text) for text in texts]
    if with_stdin:
        piped = read_extra_stdin() if texts and STDIN not in (*arguments, *files) else read_stdin()
        texts += [piped] if piped is not None else []
    return "\n".join(texts) if texts else None


def decode_argument(argument: str, *, hint: bool = False) -> str:
    """Replace invalid UTF-8 in an argument, which Python passes as lone surrogates, by U+FFFD."""
    if hint and "\\n" in argument:
        screen.note_dim("the prompt contains a literal \\n; use -e to make it a newline")
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_text_file(name: str) -> str:
    """Return the text of a UTF-8 file without one trailing newline. Raises LocalInferError if it cannot be read."""
    try:
        with Path(name).open("rb") as handle:
            content = check_size(handle.read(TEXT_LIMIT + 1), name)
        return strip_newline(content.decode("utf-8-sig"))
    except OSError as error:
        raise LocalInferError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{name}: not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # a NUL in the name
        raise LocalInferError(f"{name}: {error}") from None


def is_text_file(name: str) -> bool:
    """Return whether the beginning of a file is text: UTF-8 without NUL, unlike that of an image. False if it cannot be
    read.
    """
    try:
        with Path(name).open("rb") as handle:
            beginning = handle.read(1 << 16)
        codecs.getincrementaldecoder("utf-8")().decode(beginning)  # the last character may be incomplete
    except (OSError, ValueError):
        return False
    return b"\0" not in beginning


def read_text_files(names: Sequence[str]) -> str:
    """Return the texts of files, joined by newlines."""
    return "\n".join(map(read_text_file, names))


def unescape(text: str) -> str:
    """Replace the escape sequences \\n, \\r, \\t, \\', \\", \\\\ and \\x41, as llama.cpp does."""
    content = text.encode("utf-8", "surrogateescape")
    return re.sub(ESCAPE, lambda found: unescape_byte(found[1]), content).decode("utf-8", "replace")


def unescape_options(given: Layer, escapes: bool | None) -> Layer:
    """Replace the escape sequences in options that are strings to search for, such as stop strings."""
    if not escapes:
        return given
    texts = {name: given[name] for name in UNESCAPED_OPTIONS & given.keys()}
    return given | {name: tuple(map(unescape, each)) for name, each in texts.items() if isinstance(each, tuple)}


def read_json(name: str) -> Any:
    """Return the value in a JSON file, or on stdin for `-`. Raises LocalInferError if it is not valid JSON."""
    text = read_stdin() if name == STDIN else read_text_file(name)
    if text is None:
        raise UsageError("nothing to read: stdin is not a pipe")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LocalInferError(f"{'stdin' if name == STDIN else name}: invalid JSON: {error}") from None


def unescape_byte(escape: bytes) -> bytes:
    return bytes.fromhex(escape[1:].decode()) if len(escape) > 1 else CONTROL_CHARACTERS.get(escape, escape)
