"""Separation of an answer into reasoning, text and tool calls, while it arrives.

    reasoning    passed on as reasoning, up to the closing tag; without a closing tag, calls at its end count
    text         passed on, except for a suffix that may begin a marker
    call         held until the closing delimiter, or the end of the answer
    code blocks  that may be calls are held to the end of the answer, or until they cannot be calls
    between      after reasoning and calls: white space and surplus delimiters are dropped

If the text between the delimiters of a call cannot be parsed, it is passed on as text, together with the delimiters. A
closing delimiter within a JSON string or a value between tags does not count.
"""

from collections.abc import Callable, Collection

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls import bare_json
from localinfer.generation.tool_calls.argument_stream import ArgumentStream
from localinfer.generation.tool_calls.families import CallFormat, Family
from localinfer.generation.tool_calls.fenced_calls import CLOSING_FENCE, FENCE, CodeBlocks, FencedCallRules, FencedCalls
from localinfer.generation.tool_calls.json_calls import ends_in_string
from localinfer.generation.tool_calls.markers import find_marker
from localinfer.generation.tool_calls.tool_call import ParseResult, ToolSchemas
from localinfer.generation.tool_calls.xml_calls import ends_in_value


class AnswerParser:
    """A parser of one answer, which begins inside of the reasoning if `is_reasoning`.

    Without `fenced_calls`, code blocks behind other text are text.
    """

    def __init__(
        self, family: Family, tools: ToolSchemas, *, is_reasoning: bool = False, streams_arguments: bool = False,
        fenced_calls: FencedCallRules | None = None,
    ) -> None:  # fmt: skip
        self._family = family
        self._tools = tools
        self._openings = {call.opening: call for call in family.calls}
        self._held = ""
        self._leading_space = ""  # before the opening delimiter of the open call
        self._call: CallFormat | None = None  # the format of the open call
        self._searched = 0  # the held text has no closing delimiter before this offset
        self._surplus: tuple[str, ...] = ()  # delimiters to drop after the last call or reasoning
        self._has_text = self._has_reasoning = False
        with_syntax = (call for call in family.calls if call.syntax and streams_arguments)
        self._streamed_call = next(with_syntax, None)  # the format that a grammar constrains
        self._arguments: ArgumentStream | None = None  # of the open call
        self._n_calls = 0
        self._fenced_rules = fenced_calls if len(tools) else None
        self._fenced: FencedCalls | None = None  # the code blocks with which the held text begins
        self._blocks = CodeBlocks()  # of the text before it
        self._is_drafted_call = False  # whether the held text begins with a call inside of the reasoning
        self._step: Callable[[bool], ParseResult | None] = self._parse_reasoning if is_reasoning else self._parse_text

    @property
    def is_pending(self) -> bool:
        return bool(self._held or self._call)

    @property
    def is_in_call(self) -> bool:
        return bool(self._call or self._is_drafted_call)

    def push(self, text: str) -> ParseResult:
        self._held += text
        return self._parse(is_end=False)

    def finish(self) -> ParseResult:
        return self._parse(is_end=True)

    def _parse(self, *, is_end: bool) -> ParseResult:
        parsed = ParseResult()
        while self._held or (is_end and self._call):
            result = self._step(is_end)
            if result is None:
                break
            parsed = parsed.joined_with(result)
        return parsed

    # --- each step consumes some held text; None: more text is needed ---

    def _parse_reasoning(self, is_end: bool) -> ParseResult | None:
        tags = self._family.reasoning
        assert tags
        if not self._has_reasoning:
            self._held = self._held.lstrip()
            prefixes = [text for text in (tags.label, tags.opening) if text]
            for prefix in prefixes:
                if self._held.startswith(prefix):
                    self._held = self._held.removeprefix(prefix)
                    return ParseResult()
            if not is_end and any(prefix.startswith(self._held) for prefix in prefixes):
                return None
        if self._is_drafted_call:
            return self._parse_drafted_call(tags.closing, is_end)
        position, marker = find_marker(self._held, {tags.closing, *self._openings}, is_end)
        if not marker:
            certain = self._held if is_end else self._held[:position].rstrip()
            return self._release_reasoning(len(certain)) if certain else None
        self._is_drafted_call = marker != tags.closing
        if self._is_drafted_call:
            return self._release_reasoning(position)
        return self._end_reasoning(position, tags.closing)

    def _parse_drafted_call(self, closing: str, is_end: bool) -> ParseResult | None:
        """Parse a call inside of the reasoning: it is reasoning if that goes on to its closing tag."""
        position = self._held.find(closing, self._searched)
        if position >= 0:
            return self._end_reasoning(position, closing)
        self._searched = max(0, len(self._held) - len(closing))
        if not is_end:
            return None
        calls = parse_whole(self._family._replace(reasoning=None), self._tools, self._held)
        if not calls.calls or calls.text.strip():
            return self._release_reasoning(len(self._held))
        self._held = ""
        return calls

    def _parse_text(self, is_end: bool) -> ParseResult | None:
        if not self._has_text and len(self._tools):
            try:
                bare = bare_json.find_calls(self._held, self._tools)
            except ValueError:
                bare = bare_json.BareCalls([], 0)
            if bare and bare.calls:
                return self._release_calls(bare.calls, bare.end)
            if not bare and not is_end:
                return None
        position, marker = find_marker(self._held, self._text_markers(), is_end)
        text, rest = self._held[:position], self._held[position + len(marker) :]
        if marker:
            return self._begin(marker, text, rest)
        if not is_end:
            text = text.rstrip() if self._openings else text
        return self._release_text(text, self._held[len(text) :]) if text else None

    def _begin(self, marker: str, text: str, rest: str) -> ParseResult:
        """Release the text before a marker, and begin what the marker opens, if anything."""
        if marker == FENCE:
            return self._begin_fenced(text, rest)
        if call := self._openings.get(marker):
            self._call, self._step = call, self._parse_call
            self._arguments = ArgumentStream(call.syntax, self._n_calls) if call is self._streamed_call else None
            self._leading_space = text[len(text.rstrip()) :]
            return self._release_text(text.rstrip(), rest)
        tags = self._family.reasoning
        if marker in self._family.ignored:
            return self._release_text(text, rest)
        if tags and marker in tags[:2]:
            if not tags.repeats and (self._has_text or text.strip()):
                return self._release_text(text + marker, rest)
            if marker == tags.opening:
                self._has_reasoning, self._step = False, self._parse_reasoning
            elif not tags.repeats:
                self._surplus, self._step = (), self._skip
        return self._release_text(text.rstrip(), rest)

    def _text_markers(self) -> Collection[str]:
        tags = self._family.reasoning
        is_reasoning_possible = tags and (tags.repeats or not self._has_text)
        fences = [FENCE] if self._fenced_rules else []
        return {*self._openings, *self._family.ignored, *fences, *(tags[:2] if tags and is_reasoning_possible else ())}

    def _begin_fenced(self, text: str, rest: str) -> ParseResult:
        """Begin a code block, which may be a call if it begins where a block can."""
        assert self._fenced_rules
        space = text[len(text.rstrip()) :]
        result = self._release_text(text.rstrip(), f"{FENCE}{rest}")
        if not self._blocks.may_begin_after(space):
            return result.joined_with(self._release_text(f"{space}{FENCE}", rest))
        self._fenced = FencedCalls(self._tools, self._fenced_rules.check)
        self._leading_space, self._step = space, self._parse_fenced
        return result

    def _parse_fenced(self, is_end: bool) -> ParseResult | None:
        fenced, rules = self._fenced, self._fenced_rules
        assert fenced
        assert rules
        are_calls = fenced.are_all(self._held, is_end=is_end)
        if are_calls is None:
            return None
        end, problem = fenced.end or len(FENCE), fenced.problem
        if are_calls and rules.allows(self._n_calls + len(fenced.calls)):
            return self._release_calls(fenced.calls, len(self._held))
        if are_calls:
            end, problem = len(self._held), "there are several calls, and parallel_tool_calls is false"
        self._step = self._parse_text
        result = self._release_text(self._leading_space + self._held[:end], self._held[end:])
        return result._replace(problem=problem)

    def _parse_call(self, is_end: bool) -> ParseResult | None:
        call = self._call
        assert call
        position = self._held.find(call.closing, self._searched) if call.closing else -1
        if position < 0 and not is_end:
            self._searched = max(self._searched, len(self._held) - len(call.closing))
            part = self._arguments.push(self._held) if self._arguments else None
            return ParseResult(parts=(part,)) if part else None
        body = self._held[:position] if position >= 0 else self._held
        try:
            if position < 0 and call.must_close:
                raise ValueError("the call is cut off")
            calls = call.read(body, self._tools)
        except ValueError as problem:
            if position >= 0 and (ends_in_string(body) or ends_in_value(body)):
                self._searched = position + len(call.closing)
                return ParseResult()
            return self._release_as_text(call, problem)
        part = self._arguments.push(body) if self._arguments else None
        result = self._release_calls(calls, len(body) + (len(call.closing) if position >= 0 else 0))
        return result._replace(parts=(part,) if part else ())

    def _skip(self, is_end: bool) -> ParseResult | None:
        self._held = self._held.lstrip(" \t\r\n;" if self._surplus else None)
        for marker in filter(self._held.startswith, self._surplus):
            rest = self._held.removeprefix(marker)
            if marker == CLOSING_FENCE and not rest and not is_end:
                return None
            if marker != CLOSING_FENCE or not rest or rest[0].isspace():  # otherwise it opens a block
                self._held = rest
                return ParseResult()
        if not is_end and any(marker.startswith(self._held) for marker in self._surplus):
            return None
        if self._held:
            self._step = self._parse_text
        return ParseResult()

    # --- results ---

    def _release_as_text(self, call: CallFormat, problem: ValueError) -> ParseResult:
        """Pass on the text up to the first closing delimiter. A call after it may be valid."""
        if self._arguments and self._arguments.has_begun:  # cut off; the text was passed on as arguments
            self._call, self._held = None, ""
            return ParseResult(problem=str(problem))
        body, close, rest = self._held.partition(call.closing) if call.closing else (self._held, "", "")
        self._call, self._searched, self._step = None, 0, self._parse_text
        result = self._release_text(f"{self._leading_space}{call.opening}{body}{close}", rest)
        return result._replace(problem=str(problem))

    def _release_calls(self, calls: list[ToolCall], end: int) -> ParseResult:
        self._held, self._blocks = self._held[end:], CodeBlocks()
        self._n_calls += len(calls)
        self._call, self._searched, self._step = None, 0, self._skip
        closings = [call.closing for call in self._family.calls]
        self._surplus = tuple(filter(None, [*closings, *self._family.ignored, *bare_json.CLOSINGS]))
        return ParseResult(calls=tuple(calls))

    def _release_text(self, text: str, rest: str) -> ParseResult:
        self._held = rest
        self._has_text = self._has_text or bool(text.strip())
        self._blocks.push(text)
        return ParseResult(text)

    def _release_reasoning(self, end: int) -> ParseResult:
        text, self._held = self._held[:end], self._held[end:]
        self._has_reasoning = self._has_reasoning or bool(text)
        return ParseResult(reasoning=text)

    def _end_reasoning(self, position: int, closing: str) -> ParseResult:
        result = self._release_reasoning(position)
        self._held = self._held.removeprefix(closing)
        self._is_drafted_call, self._searched, self._surplus, self._step = False, 0, (), self._skip
        return result._replace(reasoning=result.reasoning.rstrip())


def parse_whole(family: Family, tools: ToolSchemas, text: str) -> ParseResult:
    """Parse a whole answer."""
    parser = AnswerParser(family, tools)
    return parser.push(text).joined_with(parser.finish())
