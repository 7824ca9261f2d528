"""The common interface of all tool-call parsers, and parsing of pieces."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from localinfer.errors import LocalInferError
from localinfer.generation.pieces import NO_TOKEN, Kind, Piece
from localinfer.generation.reasoning import find_tags
from localinfer.generation.tool_calls import families
from localinfer.generation.tool_calls.addressed_messages import MessageParser
from localinfer.generation.tool_calls.answer_parser import AnswerParser
from localinfer.generation.tool_calls.fenced_calls import FencedCallRules
from localinfer.generation.tool_calls.tool_call import ParseResult, Tool, ToolSchemas
from localinfer.tokenizer import Tokenizer


class StreamParser(Protocol):
    """A parser of one answer, which arrives piece by piece."""

    @property
    def is_pending(self) -> bool: ...

    @property
    def is_in_call(self) -> bool: ...

    def push(self, text: str) -> ParseResult: ...

    def finish(self) -> ParseResult: ...


class ToolCallParser:
    """A parser of one answer, with these `markers`. Calls are numbered from `first_number`."""

    def __init__(
        self, parser: StreamParser, tokenizer: Tokenizer, markers: Sequence[str] = (), first_number: int = 0
    ) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        self._token_texts = token_texts(markers, tokenizer)  # pieces of control tokens have no text
        self._next_number = self._first_number = first_number

    @property
    def is_pending(self) -> bool:
        """Whether the parser holds text that may still become a call."""
        return self._parser.is_pending

    def push(self, text: str, id: int = -1) -> ParseResult:
        """Parse the next piece: its text and its token id."""
        return self._numbered(self._parser.push(text or self._control_text(id)))

    def finish(self) -> ParseResult:
        """Return the text and calls that were held back until the end of the answer."""
        return self._numbered(self._parser.finish())

    def _control_text(self, id: int) -> str:
        """Return the text of a control token, if it may be part of a marker or of a call."""
        if id in self._token_texts or id < 0 or not self._parser.is_in_call:
            return self._token_texts.get(id, "")
        is_control = not self._tokenizer.token_bytes(id)
        return self._tokenizer.token_text(id) if is_control else ""

    def _numbered(self, parsed: ParseResult) -> ParseResult:
        """Add ids to calls without one: nine letters and digits, as Mistral's chat templates require."""
        first, self._next_number = self._next_number, self._next_number + len(parsed.calls)
        if not parsed.calls and not parsed.parts:
            return parsed
        calls = (replace(call, id=call.id or f"call{number:05}") for number, call in enumerate(parsed.calls, first))
        parts = (replace(part, id=f"call{self._first_number + part.index:05}") for part in parsed.parts)
        return parsed._replace(calls=tuple(calls), parts=tuple(parts))


def answer_parser(
    template: str,
    tokenizer: Tokenizer,
    tools: Sequence[Tool] | None = None,
    *,
    prompt: str = "",
    with_reasoning: bool = True,
    first_number: int = 0,
    streams_arguments: bool = False,
    fenced_calls: FencedCallRules | None = None,
) -> ToolCallParser:
    """Return a parser for the answer to a prompt.

    The chat template determines the format of reasoning and calls. Calls are only parsed if there are tools. Without
    `with_reasoning`, reasoning and its tags are text. With `streams_arguments`, the JSON text of arguments is passed on
    while it arrives; calls must then be valid unless they are cut off. Without `fenced_calls`, code blocks behind other
    text are never calls.
    """
    schemas = ToolSchemas(tools or ())
    parser: StreamParser
    if messages := families.find_message_format(template):
        markers, parser = list(messages.tokens), MessageParser(messages, schemas, with_reasoning=with_reasoning)
    else:
        family = families.find_family(template)
        tags = family.reasoning or find_tags(template, tokenizer)
        family = family._replace(reasoning=tags, calls=family.calls if schemas else ())
        markers = family.answer_markers
        is_reasoning = bool(with_reasoning and tags and tags.are_open(prompt))
        family = family if with_reasoning else family._replace(reasoning=None)
        parser = AnswerParser(
            family, schemas, is_reasoning=is_reasoning, streams_arguments=streams_arguments, fenced_calls=fenced_calls
        )
    return ToolCallParser(parser, tokenizer, markers, first_number)


def token_texts(texts: Sequence[str], tokenizer: Tokenizer) -> dict[int, str]:
    """Return the texts of the control tokens in these texts, by token id."""
    ids = {part for text in texts for part in tokenizer.split(text, strip=False) if isinstance(part, int)}
    return {id: tokenizer.token_bytes(id, special=True).decode() for id in ids}


def parse_pieces(pieces: Iterator[Piece], parser: ToolCallParser) -> Iterator[Piece]:
    """Yield the same pieces with parsed texts, kinds and calls. A call that cannot be parsed raises a warning.

    While something is pending, the last piece is held back; at the end of the answer the remaining text is added to it.
    """
    held_piece: Piece | None = None
    problem: LocalInferError | None = None
    try:
        with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator that holds a run
            for piece in pieces:
                if held_piece:
                    yield held_piece
                *parsed_pieces, last = apply_result(piece, parser.push(piece.text, piece.id), parser.is_pending)
                yield from parsed_pieces
                held_piece = last if parser.is_pending else None
                if not held_piece:
                    yield last
    except LocalInferError as error:
        problem = error
    if held_piece:
        *first_pieces, last = add_result(held_piece, parser.finish())
        yield from first_pieces
        yield last
    if problem:
        raise problem


def apply_result(piece: Piece, parsed: ParseResult, is_pending: bool) -> list[Piece]:
    """Return the piece with what its token completed."""
    if piece.text and parsed == ParseResult() and not is_pending:
        return [replace(piece, text="", kind="tag")]
    return add_result(replace(piece, text="", kind="text"), parsed)


def add_result(piece: Piece, parsed: ParseResult) -> list[Piece]:
    """Add the result to a piece. A second piece, without a token, has what is of another kind."""
    if parsed.problem:
        warnings.warn(f"tool call: cannot be parsed and stays in the text: {parsed.problem}", stacklevel=2)
    if not piece.text:
        kind: Kind = "reasoning" if parsed.reasoning else "text"
        piece = replace(piece, kind=kind)
    if piece.kind == "reasoning":
        reasoning = replace(piece, text=piece.text + parsed.reasoning)
        rest = Piece(parsed.text, NO_TOKEN, calls=parsed.calls, call_parts=parsed.parts)
        return [reasoning, rest] if rest.text or rest.calls or rest.call_parts else [reasoning]
    calls, call_parts = piece.calls + parsed.calls, piece.call_parts + parsed.parts
    piece = replace(piece, text=piece.text + parsed.text, calls=calls, call_parts=call_parts)
    return [piece, Piece(parsed.reasoning, NO_TOKEN, "reasoning")] if parsed.reasoning else [piece]
