"""The common interface of all tool-call parsers, and parsing of pieces."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from localinfer.errors import LocalInferError
from localinfer.generation.pieces import Kind, Piece
from localinfer.generation.tool_calls import families
from localinfer.generation.tool_calls.delimited_calls import DelimitedCallParser
from localinfer.generation.tool_calls.harmony import CONTROL_TOKENS, HarmonyParser
from localinfer.generation.tool_calls.tool_call import ParseResult, Tool, ToolSchemas
from localinfer.tokenizer import Tokenizer


class StreamParser(Protocol):
    """A parser of one answer, which arrives piece by piece."""

    @property
    def is_pending(self) -> bool: ...

    def push(self, text: str) -> ParseResult: ...

    def finish(self) -> ParseResult: ...


class ToolCallParser:
    """A parser of one answer.

    `token_texts` are the texts of relevant control tokens, as their pieces have no text. Calls are numbered from
    `first_number`.
    """

    def __init__(self, parser: StreamParser, token_texts: Mapping[int, str], first_number: int = 0) -> None:
        self._parser = parser
        self._token_texts = token_texts
        self._next_number = first_number

    @property
    def is_pending(self) -> bool:
        """Whether the parser holds text that may still become a call."""
        return self._parser.is_pending

    def push(self, text: str, id: int = -1) -> ParseResult:
        """Parse the next piece: its text and its token id."""
        return self._numbered(self._parser.push(text or self._token_texts.get(id, "")))

    def finish(self) -> ParseResult:
        """Return the text and calls that were held back until the end of the answer."""
        return self._numbered(self._parser.finish())

    def _numbered(self, parsed: ParseResult) -> ParseResult:
        """Add ids to calls without one: nine letters and digits, as Mistral's chat templates require."""
        first, self._next_number = self._next_number, self._next_number + len(parsed.calls)
        calls = (replace(call, id=call.id or f"call{number:05}") for number, call in enumerate(parsed.calls, first))
        return parsed._replace(calls=tuple(calls)) if parsed.calls else parsed


def tool_call_parser(
    template: str, tokenizer: Tokenizer, tools: Sequence[Tool] | None = None, *, first_number: int = 0
) -> ToolCallParser | None:
    """Return a parser for the answers of a model with this chat template, in a conversation with these tools.

    Return None if there is nothing to parse. Without tools, only gpt-oss's answers need a parser.
    """
    if families.is_harmony(template):
        return ToolCallParser(HarmonyParser(), token_texts(CONTROL_TOKENS, tokenizer), first_number)
    if not tools:
        return None
    formats = families.find_family(template).formats
    texts = [text for format in formats for text in (format.opening, format.closing) if text]
    return ToolCallParser(DelimitedCallParser(formats, ToolSchemas(tools)), token_texts(texts, tokenizer), first_number)


def token_texts(texts: Sequence[str], tokenizer: Tokenizer) -> dict[int, str]:
    """Return the texts that are single tokens, by token id."""
    tokens = {text: tokenizer.split(text, strip=False) for text in texts}
    return {ids[0]: text for text, ids in tokens.items() if len(ids) == 1 and isinstance(ids[0], int)}


def parse_pieces(pieces: Iterator[Piece], parser: ToolCallParser) -> Iterator[Piece]:
    """Yield the same pieces with parsed texts and calls. A call that cannot be parsed raises a warning.

    While something is pending, the last piece is held back; at the end of the answer the remaining text is added to it.
    """
    held_piece: Piece | None = None
    problem: LocalInferError | None = None
    try:
        with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator that holds a run
            for piece in pieces:
                if held_piece:
                    yield held_piece
                parsed_piece = piece
                if piece.kind == "text":
                    parsed = parser.push(piece.text, piece.id)
                    is_tag = piece.text and parsed == ParseResult() and not parser.is_pending
                    parsed_piece = replace(piece, text="", kind="tag") if is_tag else apply_result(piece, parsed)
                held_piece = parsed_piece if parser.is_pending else None
                if not held_piece:
                    yield parsed_piece
    except LocalInferError as error:
        problem = error
    if held_piece:
        last_result = parser.finish()
        yield apply_result(held_piece, last_result._replace(text=held_piece.text + last_result.text))
    if problem:
        raise problem


def apply_result(piece: Piece, parsed: ParseResult) -> Piece:
    if parsed.problem:
        warnings.warn(f"tool call: cannot be parsed and stays in the text: {parsed.problem}", stacklevel=2)
    kind: Kind = "reasoning" if parsed.reasoning else "text"
    return replace(piece, text=parsed.text or parsed.reasoning, kind=kind, calls=piece.calls + parsed.calls)
