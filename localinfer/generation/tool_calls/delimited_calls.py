"""Calls between delimiters, separated from the surrounding text while it arrives.

    outside       text is passed on, except for a suffix that may begin an opening delimiter
    inside        everything is held until the closing delimiter, or the end of the answer
    after a call  white space and surplus delimiters are dropped

If the text between delimiters cannot be parsed, it is passed on as text, together with the delimiters. A closing
delimiter within a JSON string does not count.
"""

from collections.abc import Sequence

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls import bare_json
from localinfer.generation.tool_calls.families import CallFormat
from localinfer.generation.tool_calls.json_calls import ends_in_string
from localinfer.generation.tool_calls.tool_call import ParseResult, ToolSchemas


class DelimitedCallParser:
    """A parser of one answer with these call formats."""

    def __init__(self, formats: Sequence[CallFormat], tools: ToolSchemas) -> None:
        self._formats = formats
        self._tools = tools
        self._closings = tuple(filter(None, [*(format.closing for format in formats), *bare_json.CLOSINGS]))
        self._held = ""
        self._leading_space = ""  # before the opening delimiter
        self._format: CallFormat | None = None  # the format of the open call
        self._searched = 0  # the held text has no closing delimiter before this offset
        self._is_after_call = False
        self._has_text = False

    @property
    def is_pending(self) -> bool:
        return bool(self._held or self._format)

    def push(self, text: str) -> ParseResult:
        self._held += text
        return self._parse(is_end=False)

    def finish(self) -> ParseResult:
        return self._parse(is_end=True)

    def _parse(self, *, is_end: bool) -> ParseResult:
        parsed = ParseResult()
        while self._held or (is_end and self._format):
            if self._format:
                result = self._parse_inside(self._format, is_end)
            else:
                result = self._skip(is_end) if self._is_after_call else self._parse_outside(is_end)
            if result is None:
                break
            parsed = parsed.joined_with(result)
        return parsed

    # --- each step consumes some held text; None: more text is needed ---

    def _parse_outside(self, is_all: bool) -> ParseResult | None:
        if not self._has_text and len(self._tools):
            try:
                bare = bare_json.find_calls(self._held, self._tools)
            except ValueError:
                bare = bare_json.BareCalls([], 0)
            if bare and bare.calls:
                return self._release_calls(bare.calls, bare.end)
            if not bare and not is_all:
                return None
        matches = [(position, format) for format in self._formats if (position := self._held.find(format.opening)) >= 0]
        if matches:
            position, self._format = min(matches, key=lambda each: each[0])
            text = self._held[:position].rstrip()
            self._leading_space = self._held[len(text) : position]
            self._held = self._held[position + len(self._format.opening) :]
            return self._release_text(text)
        certain = self._held if is_all else self._unambiguous_text()
        self._held = self._held[len(certain) :]
        return self._release_text(certain) if certain else None

    def _unambiguous_text(self) -> str:
        """Return the held text without white space and the beginning of a delimiter at its end."""
        max_length = min(max(len(format.opening) for format in self._formats) - 1, len(self._held))
        suffixes = (self._held[-length:] for length in range(max_length, 0, -1))
        delimiter_start = next(
            (suffix for suffix in suffixes if any(format.opening.startswith(suffix) for format in self._formats)), ""
        )
        return self._held.removesuffix(delimiter_start).rstrip()

    def _parse_inside(self, format: CallFormat, is_all: bool) -> ParseResult | None:
        position = self._held.find(format.closing, self._searched) if format.closing else -1
        if position < 0 and not is_all:
            return None
        body = self._held[:position] if position >= 0 else self._held
        try:
            if position < 0 and format.must_close:
                raise ValueError("the call is cut off")
            calls = format.read(body, self._tools)
        except ValueError as problem:
            if position >= 0 and ends_in_string(body):
                self._searched = position + len(format.closing)
                return ParseResult()
            return self._release_as_text(format, problem)
        return self._release_calls(calls, len(body) + (len(format.closing) if position >= 0 else 0))

    def _release_as_text(self, format: CallFormat, problem: ValueError) -> ParseResult:
        """Pass on the text up to the first closing delimiter. A call after it may be valid."""
        body, close, self._held = self._held.partition(format.closing) if format.closing else (self._held, "", "")
        self._format, self._searched = None, 0
        return self._release_text(f"{self._leading_space}{format.opening}{body}{close}")._replace(problem=str(problem))

    def _skip(self, is_all: bool) -> ParseResult | None:
        self._held = self._held.lstrip(" \t\r\n;")
        for closing in self._closings:
            if self._held.startswith(closing):
                self._held = self._held.removeprefix(closing)
                return ParseResult()
        if not is_all and any(closing.startswith(self._held) for closing in self._closings):
            return None
        self._is_after_call = False
        return ParseResult()

    # --- results ---

    def _release_calls(self, calls: list[ToolCall], end: int) -> ParseResult:
        self._held = self._held[end:]
        self._format, self._searched, self._is_after_call = None, 0, True
        return ParseResult(calls=tuple(calls))

    def _release_text(self, text: str) -> ParseResult:
        self._has_text = self._has_text or bool(text.strip())
        return ParseResult(text)
