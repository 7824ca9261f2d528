"""Tool calls of each family: complete, piece by piece, truncated, invalid."""

from typing import Any

import pytest
from tool_call_answers import ANSWERS, BROKEN, GLM, HERMES, HUNYUAN4, LLAMA, PARIS, QWEN3, SOLAR, TOOLS

from localinfer.generation.reasoning import ReasoningTags
from localinfer.generation.tool_calls.addressed_messages import HARMONY, MessageParser
from localinfer.generation.tool_calls.answer_parser import AnswerParser
from localinfer.generation.tool_calls.families import find_family, find_message_format
from localinfer.generation.tool_calls.parser import StreamParser
from localinfer.generation.tool_calls.tool_call import ParseResult, ToolSchemas, parse_unquoted


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize(("template", "written", "text", "calls"), ANSWERS)
def test_calls(template: str, written: str, text: str, calls: list[tuple[str, dict[str, Any]]], size: int) -> None:
    parsed = parse(parser_of(template), written, size)
    assert (parsed.text, [(call.name, call.arguments) for call in parsed.calls], parsed.problem) == (text, calls, "")


@pytest.mark.parametrize("size", [1, 10_000_000])
@pytest.mark.parametrize(("template", "written"), BROKEN)
def test_unparsable_calls_are_text(template: str, written: str, size: int) -> None:
    parsed = parse(parser_of(template), written, size if len(written) < 1000 else 10_000_000)
    assert (parsed.text, parsed.calls) == (written, ())
    assert parsed.problem


@pytest.mark.parametrize("template", [QWEN3, GLM])
def test_many_arguments_without_an_end(template: str) -> None:
    argument = "<parameter=a>b</parameter>" if template == QWEN3 else "<arg_key>a</arg_key><arg_value>b</arg_value>"
    head = "<function=now>" if template == QWEN3 else "now"
    written = f"<tool_call>{head}{argument * 200}<x></tool_call>"
    assert parse(parser_of(template), written, 10_000).text == written


def test_call_after_an_invalid_one() -> None:
    broken = '<tool_call>{"name": "now", "arguments": {"x": "}}</tool_call>'
    parsed = parse(parser_of(HERMES), f'{broken}\n<tool_call>{{"name": "now"}}</tool_call>')
    assert (parsed.text, [call.name for call in parsed.calls]) == (broken, ["now"])
    assert parsed.problem


@pytest.mark.parametrize(("template", "written", "text", "_"), ANSWERS)
def test_partial_calls_are_never_yielded_as_text(template: str, written: str, text: str, _: object) -> None:
    stream_parser, observed = parser_of(template), ""
    for letter in written:
        observed += stream_parser.push(letter).text
        assert text.startswith(observed)


def test_text_is_yielded_as_soon_as_possible() -> None:
    stream_parser = parser_of(HERMES)
    texts = [
        stream_parser.push(chunk).text for chunk in ("A", " <b", "> <to", "ol", "s> {", '"name": 1}\n', "\n", "so")
    ]
    assert texts == ["A", " <b", ">", "", " <tools> {", '"name": 1}', "", "\n\nso"]


def test_json_without_a_call_is_released_early() -> None:
    stream_parser = parser_of(LLAMA)
    assert [stream_parser.push(chunk).text for chunk in (' {"', "na", 'tion": "x')] == ["", "", ' {"nation": "x']


# --- gpt-oss ---

ANALYSIS = "<|channel|>analysis<|message|>They ask for Paris.<|end|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    ("written", "text", "reasoning", "names"),
    [
        (ANALYSIS + CALL, "", "They ask for Paris.", ["get_weather"]),  # without the final <|call|>
        (ANALYSIS + CALL + "<|call|>", "", "They ask for Paris.", ["get_weather"]),
        (ANALYSIS + "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}", "",
         "They ask for Paris.", ["now"]),
        (" to=functions.now<|channel|>commentary json<|message|>{}", "", "", ["now"]),
        ("<|channel|>commentary<|message|>I look.<|end|>" + CALL, "I look.", "", ["get_weather"]),
        (ANALYSIS + "<|start|>assistant<|channel|>final<|message|>a < b <|c", "a < b <|c", "They ask for Paris.", []),
        ("<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.",
         "One.\n\nTwo.", "", []),
        ("<|channel|>final<|message|>Hello<|return|>", "Hello", "", []),
        ("Hello there", "Hello there", "", []),
        ("", "", "", []),
    ],
)  # fmt: skip
def test_channels(written: str, text: str, reasoning: str, names: list[str], size: int) -> None:
    parsed = parse(MessageParser(HARMONY, ToolSchemas(TOOLS)), written, size)
    assert (parsed.text, parsed.reasoning, [call.name for call in parsed.calls]) == (text, reasoning, names)
    assert not parsed.problem


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(("template", "written", "text", "reasoning", "calls"), [
    ("<atem:function_calls> <|message|>", (
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>I look.<|eom|>"
        '<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'),
     "I look.", "Hm.", [("get_weather", PARIS)]),
    ("<atem:function_calls> <|message|>", " to=user<|message|>Use <atem:invoke name=.<|eot|>",
     "Use <atem:invoke name=.", "", []),
    (">>>all", 'all\nI\nlook.>>>get_weather\n{"city": "Paris"}>>>now\n{}', "I\nlook.", "",
     [("get_weather", PARIS), ("now", {})]),
    (">>>all", "Hello\nthere", "Hello\nthere", "", []),
])  # fmt: skip
def test_addressed_messages(
    template: str, written: str, text: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]], size: int
) -> None:
    format = find_message_format(template)
    assert format
    parsed = parse(MessageParser(format, ToolSchemas(TOOLS)), written, size)
    assert (parsed.text, parsed.reasoning) == (text, reasoning)
    assert [(call.name, call.arguments) for call in parsed.calls] == calls


def test_channels_without_a_reasoning_format() -> None:
    parsed = parse(MessageParser(HARMONY, ToolSchemas(TOOLS), with_reasoning=False), ANALYSIS + CALL)
    assert (parsed.text, parsed.reasoning, [call.name for call in parsed.calls]) == (ANALYSIS, "", ["get_weather"])


def test_message_to_an_unknown_tool_is_not_text() -> None:
    parsed = parse(MessageParser(HARMONY, ToolSchemas()), ANALYSIS + "<|channel|>commentary to=python<|message|>1 + 1")
    assert (parsed.text, parsed.calls) == ("", ())
    assert parsed.problem


@pytest.mark.parametrize(("schema", "text", "value"), [
    ({"type": "string"}, "7", "7"), ({"type": "integer"}, "7", 7), ({}, "7", 7), ({}, "seven", "seven"), (None, "7", 7),
    ({"type": ["string", "null"]}, "null", None), ({"type": ["string", "null"]}, "7", "7"),
    ({"type": ["string", "integer"]}, "7", 7), ({"type": ["string", "object"]}, '{"a": 1}', {"a": 1}),
    ({"type": ["string", "object"]}, "{a", "{a"), ({"enum": ["7", "8"]}, "7", "7"), ({"const": "7"}, "7", "7"),
    ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]), ({"oneOf": [{"type": "string"}]}, "true", "true"),
])  # fmt: skip
def test_values_without_quotes(schema: object, text: str, value: object) -> None:
    assert parse_unquoted(text, schema) == value


def test_invalid_arguments_of_a_channel_are_text() -> None:
    parsed = parse(MessageParser(HARMONY, ToolSchemas(TOOLS)), ANALYSIS + CALL.removesuffix('"}'))
    assert (parsed.text, parsed.calls) == ('{"city": "Paris', ())
    assert parsed.problem


@pytest.mark.parametrize("template", [
    "{%- set HYTK = ':opensource' %}{{ '<tool_calls{}>'.format(HYTK) }}<tool_sep{} <arg_key{}",
    "<tool_calls:opensource> <arg_key:opensource>",
])  # fmt: skip
def test_suffix_of_the_tags(template: str) -> None:
    family = find_family(template)
    assert family.reasoning == ReasoningTags("<think:opensource>", "</think:opensource>")
    assert family.calls[0].opening == "<tool_calls:opensource>"
    assert family.calls[0].syntax
    assert "<arg_value:opensource>$VALUE</arg_value:opensource>" in family.calls[0].syntax.parameter


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(("template", "written"), [
    (HUNYUAN4, "<think:x>Why?</think:x>So."),
    (SOLAR, "<|think|>Why?<|end|><|begin|>assistant<|content|>So.<|end|>"),
    ("plamo: tool_requests", "<|plamo:begin_think:plamo|>Why?<|plamo:end_think:plamo|>So."),
    ("[unused11]", "[unused16]Why?[unused17]So."),
])  # fmt: skip
def test_reasoning_in_tags_of_a_family(template: str, written: str, size: int) -> None:
    parsed = parse(parser_of(template), written, size)
    assert (parsed.reasoning, parsed.text) == ("Why?", "So.")


def parser_of(template: str) -> AnswerParser:
    return AnswerParser(find_family(template), ToolSchemas(TOOLS))


def parse(stream_parser: StreamParser, written: str, size: int = 1) -> ParseResult:
    parsed = ParseResult()
    for at in range(0, len(written), size):
        parsed = parsed.joined_with(stream_parser.push(written[at : at + size]))
    return parsed.joined_with(stream_parser.finish())
