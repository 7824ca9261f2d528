"""Texts that a user hands in: as an argument, in a file, or piped into stdin."""

import json
import re
from pathlib import Path
from typing import Any

from cli import screen
from cli.stdin import TEXT_LIMIT, from_stdin, limited, more_from_stdin, without_newline
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Layer

STDIN = "-"  # in the place of a text, or of a file's name
ESCAPE = rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])"
WITH_ESCAPES = {"stop", "dry_sequence_breaker"}  # options
ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def joined(argument: str | None, file: str | None, *, escapes: bool | None = None, with_stdin: bool = True) -> str:
    """What was given, in this order and joined by newlines: the argument, the file, stdin.

    With `escapes`, \\n in argument and file means a newline, and so on. UsageError when nothing was given; an empty
    text is a text.
    """
    text = given_text(argument, file, escapes=escapes, with_stdin=with_stdin)
    if text is None:
        raise UsageError("no prompt: give -p TEXT or -f FILE, or pipe one into stdin")
    return text


def given_text(
    argument: str | None, file: str | None, *, escapes: bool | None = None, with_stdin: bool = True
) -> str | None:
    """As `joined`; None when nothing was given."""
    texts = []
    if argument is not None and argument != STDIN:
        texts.append(from_argument(argument, hint=escapes is None))
    if file is not None and file != STDIN:
        texts.append(from_file(file))
    if escapes:
        texts = [unescaped(text) for text in texts]
    if with_stdin:
        piped = more_from_stdin() if texts and STDIN not in (argument, file) else from_stdin()
        texts += [piped] if piped is not None else []
    return "\n".join(texts) if texts else None


def from_argument(argument: str, *, hint: bool = False) -> str:
    """Bytes of an argument that are not UTF-8 reach Python as lone surrogates: U+FFFD takes their place."""
    if hint and "\\n" in argument:
        screen.aside("\\n in the prompt is a backslash and an n: with -e it is a new line")
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


def unescaped(text: str) -> str:
    """With \\n, \\r, \\t, \\', \\", \\\\ and bytes such as \\x41 as what they stand for, as llama.cpp has it."""
    content = text.encode("utf-8", "surrogateescape")
    return re.sub(ESCAPE, lambda found: byte_of(found[1]), content).decode("utf-8", "replace")


def with_escapes(given: Layer, escapes: bool | None) -> Layer:
    """The options, with the same done to those that are texts to look for."""
    if not escapes:
        return given
    texts = {name: given[name] for name in WITH_ESCAPES & given.keys()}
    return given | {name: tuple(map(unescaped, each)) for name, each in texts.items() if isinstance(each, tuple)}


def from_json(name: str) -> Any:
    """The value in a JSON file, or in what was piped in, for `-`."""
    text = from_stdin() if name == STDIN else from_file(name)
    if text is None:
        raise UsageError("nothing to read: stdin is no pipe")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LocalInferError(f"{'stdin' if name == STDIN else name}: no JSON: {error}") from None


def byte_of(escape: bytes) -> bytes:
    return bytes.fromhex(escape[1:].decode()) if len(escape) > 1 else ESCAPED.get(escape, escape)
