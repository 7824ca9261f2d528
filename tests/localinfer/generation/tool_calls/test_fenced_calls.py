"""Calls in Markdown behind other text, and examples of calls, which must stay text."""

import random
from typing import Any

import pytest
from constraints import BYTES
from tool_call_answers import ANSWERS, BROKEN, HERMES

from localinfer.errors import UnsupportedError
from localinfer.generation.tool_calls.answer_parser import AnswerParser
from localinfer.generation.tool_calls.call_constraint import fenced_call_rules
from localinfer.generation.tool_calls.families import find_family
from localinfer.generation.tool_calls.fenced_calls import FencedCallRules
from localinfer.generation.tool_calls.tool_call import ParseResult, ToolSchemas

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "read", "parameters": {
        "type": "object", "required": ["path"],
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "minimum": 1}},
    }}},
    {"name": "now"},
]  # fmt: skip
CALL = '{"name": "now", "arguments": {}}'


def block(text: str, fence: str = "```json", end: str = "```") -> str:
    return f"{fence}\n{text}\n{end}"


NOW = block(CALL)
READ = block('{"name": "read", "arguments": {"path": "a.txt"}}')
HARD = {"path": 'a\n```\n"}{ ```json\n</tool_call>'}
HARD_BLOCK = block(
    '{\n  "arguments": {\n    "path": "a\\n```\\n\\"}{ ```json\\n</tool_call>"\n  },\n  "name": "read"\n}'
)
EXAMPLES = [
    f"I call it.\n\n{NOW}\n\nIt tells the time.",  # more text
    f"Call it so:\n{NOW}\n\n{READ}\nand so on",
    f"Two ways:\n{NOW}\n{block('now()', '```python')}",
    f"It is {NOW}",  # within a line
    "It is " + block("{}") + f"\n{NOW}",  # the first fence is within a line, so that the second one opens a block
    f"> It is\n> {NOW}",
    f"So:\n\n    {NOW}",  # indented text
    f"So:\n````markdown\nCall it:\n{NOW}\n````",  # within another block
    f"So:\n````markdown\nCall it:\n{NOW}",
    f"So:\n~~~\n{NOW}\n~~~",
    f"So:\n~~~\n{NOW}",
    f"So:\n```python\nnow()\n{NOW}",
    f"So:\n{block(CALL, '```')}",  # another language
    f"So:\n{block(CALL, '```jsonc')}",
    f"So:\n{block(CALL, '```JSON')}",
    f"So:\n{block(CALL, '````json', '````')}",
    f"So:\n```json {CALL}\n```",
    f"So:\n```json\n{CALL}```",
    f"So:\n{NOW}`",
    f"So:\n{NOW} x",
    f"So:\n{NOW}```json\n{CALL}\n```",
    f"So:\n```json\n{CALL}\n",  # cut off
    f"So:\n```json\n{CALL}",
    f"So:\n```json\n{CALL[:-1]}",
    "So:\n```json\n",
    "So:\n```js",
    "So:\n" + block(f"[{CALL}]"),  # no object
    "So:\n" + block(f"{CALL}\n{CALL}"),
    "So:\n" + block("{}"),
    f"So:\n{block(CALL[:-2])}",
    "So:\n" + block('{"name": "now"}'),  # other keys
    "So:\n" + block('{"name": "now", "parameters": {}}'),
    "So:\n" + block('{"name": "now", "arguments": {}, "id": 1}'),
    "So:\n" + block('{"type": "function", "name": "now", "arguments": {}}'),
    "So:\n" + block('{"name": "now", "arguments": "{}"}'),  # arguments that are no object
    "So:\n" + block('{"name": "now", "arguments": null}'),
    "So:\n" + block('{"name": "now", "arguments": {"x": NaN}}'),
    "So:\n" + block('{"name": "other", "arguments": {}}'),  # an unknown tool
    "So:\n" + block('{"name": "no", "arguments": {}}'),
    "So:\n" + block('{"name": "localinfer", "version": "1.0"}'),
]
INVALID = [  # arguments that violate the schema
    '{"name": "read", "arguments": {}}',
    '{"name": "read", "arguments": {"path": 1}}',
    '{"name": "read", "arguments": {"path": "a", "lines": 0}}',
    '{"name": "read", "arguments": {"path": "a", "line": 1}}',  # a property that the schema does not name
]


def parser_of(template: str = HERMES, *, is_parallel: bool = True) -> AnswerParser:
    rules = fenced_call_rules(TOOLS, lambda: BYTES, is_parallel=is_parallel, on_wait=lambda: None)
    return AnswerParser(find_family(template), ToolSchemas(TOOLS), fenced_calls=rules)


def parse(parser: AnswerParser, pieces: list[str]) -> ParseResult:
    parsed = ParseResult()
    for piece in pieces:
        parsed = parsed.joined_with(parser.push(piece))
    return parsed.joined_with(parser.finish())


def divisions(text: str) -> list[list[str]]:
    """Return the text whole, in letters and in random pieces."""
    source, pieces, rest = random.Random(text), [], text
    while rest:
        size = source.randint(1, 9)
        pieces.append(rest[:size])
        rest = rest[size:]
    return [[text], list(text), pieces]


@pytest.mark.parametrize(("written", "text", "calls"), [
    (f"I look.\n\n{READ}", "I look.", [("read", {"path": "a.txt"})]),
    (f"I look.\n{READ} \n\n", "I look.", [("read", {"path": "a.txt"})]),
    (f"I look.\n\n   {READ}", "I look.", [("read", {"path": "a.txt"})]),
    (f"I look.\n\n{READ}\n\n\n{NOW}", "I look.", [("read", {"path": "a.txt"}), ("now", {})]),
    (f"I look.\n\n{HARD_BLOCK}", "I look.", [("read", HARD)]),
    (f"I look.\n\n{READ}".replace("\n", "\r\n"), "I look.", [("read", {"path": "a.txt"})]),
    ("I look.\n" + block(f"{{{CALL}}}"), "I look.", [("now", {})]),  # as templates of Qwen show calls
    (f"Run this:\n{block('now()', '```python')}\n{NOW}", f"Run this:\n{block('now()', '```python')}", [("now", {})]),
    ("Like\n" + block('{"a": 1}') + f"\n\nso\n{NOW}", "Like\n" + block('{"a": 1}') + "\n\nso", [("now", {})]),
    (f"Like\n{NOW}\nor now:\n{READ}", f"Like\n{NOW}\nor now:", [("read", {"path": "a.txt"})]),
    (f"I look. <tool_call>{CALL}</tool_call>\n{NOW}", "I look.", [("now", {}), ("now", {})]),
    (f"<tool_call>{CALL}</tool_call>\n{block('now()', '```python')}", block("now()", "```python"), [("now", {})]),
    (f"{NOW}\n{block('now()', '```python')}", block("now()", "```python"), [("now", {})]),
    (f"Like\n{NOW}\n<tool_call>{CALL}</tool_call>", f"Like\n{NOW}", [("now", {})]),
])  # fmt: skip
def test_calls(written: str, text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    for pieces in divisions(written):
        parsed = parse(parser_of(), pieces)
        assert (parsed.text, [(call.name, call.arguments) for call in parsed.calls]) == (text, calls), pieces
        assert not parsed.problem


@pytest.mark.parametrize("written", EXAMPLES)
def test_examples_are_text(written: str) -> None:
    for pieces in divisions(written):
        assert parse(parser_of(), pieces) == ParseResult(written)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_arguments_are_text(text: str) -> None:
    written = f"I look.\n{block(text)}"
    for pieces in divisions(written):
        parsed = parse(parser_of(), pieces)
        assert (parsed.text, parsed.calls) == (written, ())
        assert parsed.problem.startswith("read: #")


def test_arguments_that_cannot_be_checked_are_text() -> None:
    def check(name: str, _: object) -> str:
        raise AssertionError(name)

    def no_vocabulary() -> Any:
        raise UnsupportedError("there is none")

    rules = fenced_call_rules(TOOLS, no_vocabulary, is_parallel=True, on_wait=lambda: None)
    written = f"I look.\n{NOW}"
    parsed = parse(AnswerParser(find_family(HERMES), ToolSchemas(TOOLS), fenced_calls=rules), [written])
    assert parsed == ParseResult(written, problem="now: there is none")
    without_tools = AnswerParser(find_family(HERMES), ToolSchemas(), fenced_calls=FencedCallRules(check))
    assert parse(without_tools, [written]) == ParseResult(written)
    assert parse(AnswerParser(find_family(HERMES), ToolSchemas(TOOLS)), [written]) == ParseResult(written)


def test_schema_whose_check_never_ends() -> None:
    tool = {"name": "find", "parameters": {"properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}}
    rules = fenced_call_rules([tool], lambda: BYTES, is_parallel=True, on_wait=lambda: None)
    assert "too complex" in rules.check("find", {"text": "a" * 60 + "b"})
    assert rules.check("find", {"text": "aa"}) == ""


def test_one_call_at_most() -> None:
    one = parse(parser_of(is_parallel=False), [f"I look.\n{NOW}"])
    assert (one.text, len(one.calls)) == ("I look.", 1)
    for written in f"I look.\n{NOW}\n{NOW}", f"I look.\n{NOW}\n{READ}\n":
        several = parse(parser_of(is_parallel=False), list(written))
        assert (several.text, several.calls) == (written, ())
        assert "parallel_tool_calls" in several.problem
    tagged = f"<tool_call>{CALL}</tool_call>"
    second = parse(parser_of(is_parallel=False), [f"{tagged}\nAnd:\n{NOW}"])
    assert (second.text, len(second.calls)) == (f"And:\n{NOW}", 1)


def test_only_what_may_be_a_call_is_held_back() -> None:
    parser = parser_of()
    pieces = [
        "So:\n", "``", "`py", "\n```", "\n```", "json", "\n{", '"n', 'ame": "', "nobody", '"}\n', "``", "`\n", "x",
        " `", "```",
    ]  # fmt: skip
    texts = [parser.push(piece).text for piece in pieces]
    assert texts == [
        "So:", "", "\n```py", "", "\n```", "", "", "", "", '\n```json\n{"name": "nobody', '"}', "", "\n```", "\nx",
        "", " `",
    ]  # fmt: skip
    assert parser.finish().text == "```"


def test_block_is_released_by_what_follows() -> None:
    parser = parser_of()
    assert parser.push(f"So:\n{NOW}\n\n").text == "So:"
    assert parser.push("Or").text == f"\n{NOW}\n\nOr"


def test_many_blocks_take_linear_time() -> None:
    written = "So:\n" + f"{NOW}\n" * 1000
    parsed = parse(parser_of(), [written, "end"])
    assert (parsed.text, parsed.calls) == (f"{written}end", ())


@pytest.mark.parametrize(("template", "written", "text", "calls"), ANSWERS)
def test_other_formats_are_parsed_as_before(
    template: str, written: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    from tool_call_answers import TOOLS as OTHER_TOOLS

    rules = FencedCallRules(lambda _name, _arguments: "")
    for pieces in divisions(written):
        parser = AnswerParser(find_family(template), ToolSchemas(OTHER_TOOLS), fenced_calls=rules)
        parsed = parse(parser, pieces)
        assert (parsed.text, [(call.name, call.arguments) for call in parsed.calls]) == (text, calls)


@pytest.mark.parametrize(("template", "written"), [each for each in BROKEN if len(each[1]) < 1000])
def test_broken_calls_stay_text(template: str, written: str) -> None:
    parsed = parse(parser_of(template), [written])
    assert (parsed.text, parsed.calls) == (written, ())
