"""One face for all forms of calls, and pieces that know what they belong to."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from localinfer.errors import LocalInferError
from localinfer.generation.calls import families
from localinfer.generation.calls.call import Parsed, Tool, Tools
from localinfer.generation.calls.frames import Framed
from localinfer.generation.calls.harmony import MARKS, Harmony
from localinfer.generation.pieces import Kind, Piece
from localinfer.tokenizer import Tokenizer


class Form(Protocol):
    """Follows one answer, as a text that comes piece by piece."""

    @property
    def holds(self) -> bool: ...

    def push(self, text: str) -> Parsed: ...

    def finish(self) -> Parsed: ...


class Parser:
    """Follows one answer. `spelled` are the texts of control tokens that matter; calls are numbered from `first` on."""

    def __init__(self, form: Form, spelled: Mapping[int, str], first: int = 0) -> None:
        self._form = form
        self._spelled = spelled
        self._next = first

    @property
    def holds(self) -> bool:
        """Is there anything that is neither text nor call so far?"""
        return self._form.holds

    def push(self, text: str, id: int = -1) -> Parsed:
        """The next piece: its text, and its token, as control tokens have no text."""
        return self._numbered(self._form.push(text or self._spelled.get(id, "")))

    def finish(self) -> Parsed:
        """What was held back, when the answer is over."""
        return self._numbered(self._form.finish())

    def _numbered(self, parsed: Parsed) -> Parsed:
        """Nine letters and digits: what Mistral's templates ask of an id."""
        first, self._next = self._next, self._next + len(parsed.calls)
        calls = (replace(call, id=call.id or f"call{number:05}") for number, call in enumerate(parsed.calls, first))
        return parsed._replace(calls=tuple(calls)) if parsed.calls else parsed


def parser(
    template: str, tokenizer: Tokenizer, tools: Sequence[Tool] | None = None, *, first: int = 0
) -> Parser | None:
    """For the answer of a model whose chat template this is, to a conversation in which it was shown these tools.

    None where nothing can be told apart: without tools only gpt-oss has something to tell.
    """
    if families.is_harmony(template):
        return Parser(Harmony(), spelled(MARKS, tokenizer), first)
    if not tools:
        return None
    frames = families.family(template).frames
    marks = [mark for frame in frames for mark in (frame.opening, frame.closing) if mark]
    return Parser(Framed(frames, Tools(tools)), spelled(marks, tokenizer), first)


def spelled(marks: Sequence[str], tokenizer: Tokenizer) -> dict[int, str]:
    """Those that are one token each."""
    tokens = {mark: tokenizer.split(mark, swallow=False) for mark in marks}
    return {ids[0]: mark for mark, ids in tokens.items() if len(ids) == 1 and isinstance(ids[0], int)}


def told_apart(pieces: Iterator[Piece], parser: Parser) -> Iterator[Piece]:
    """The same tokens, with the texts and calls that the parser tells apart; a call that cannot be read is a warning.

    While something is uncertain, the last piece waits: the rest of the text is its text, if the answer ends there.
    """
    waiting: Piece | None = None
    problem: LocalInferError | None = None
    try:
        with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator, which holds a run
            for piece in pieces:
                if waiting:
                    yield waiting
                told = piece
                if piece.kind == "text":
                    parsed = parser.push(piece.text, piece.id)
                    is_tag = piece.text and parsed == Parsed() and not parser.holds  # a header of gpt-oss
                    told = replace(piece, text="", kind="tag") if is_tag else merged(piece, parsed)
                waiting = told if parser.holds else None
                if not waiting:
                    yield told
    except LocalInferError as error:
        problem = error
    if waiting:
        rest = parser.finish()
        yield merged(waiting, rest._replace(text=waiting.text + rest.text))
    if problem:
        raise problem


def merged(piece: Piece, parsed: Parsed) -> Piece:
    if parsed.problem:
        warnings.warn(f"a call of a tool cannot be read, it is part of the text: {parsed.problem}", stacklevel=2)
    kind: Kind = "thought" if parsed.thought else "text"
    return replace(piece, text=parsed.text or parsed.thought, kind=kind, calls=piece.calls + parsed.calls)
