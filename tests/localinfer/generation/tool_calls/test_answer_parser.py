"""Separation of reasoning, text and calls, with the tags of each family."""

import json
import random

import pytest
from tool_call_answers import ANSWERS, TOOLS

from localinfer.generation.reasoning import TAGS, THINK, ReasoningTags
from localinfer.generation.tool_calls.answer_parser import AnswerParser
from localinfer.generation.tool_calls.families import find_family
from localinfer.generation.tool_calls.markers import find_marker
from localinfer.generation.tool_calls.tool_call import ParseResult, ToolSchemas

GEMMA = next(tags for tags in TAGS if tags.label)
KIMI_K3 = "<|open|> <|sep|>"
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
Expected = tuple[str, str, list[str]]  # reasoning, text, names of calls


def parser_of(template: str, tags: ReasoningTags | None, *, is_reasoning: bool = False) -> AnswerParser:
    family = find_family(template)
    family = family._replace(reasoning=family.reasoning or tags)
    return AnswerParser(family, ToolSchemas(TOOLS), is_reasoning=is_reasoning)


def parse(parser: AnswerParser, pieces: list[str]) -> Expected:
    parsed = ParseResult()
    for piece in pieces:
        parsed = parsed.joined_with(parser.push(piece))
    parsed = parsed.joined_with(parser.finish())
    assert not parsed.problem
    return parsed.reasoning, parsed.text, [call.name for call in parsed.calls]


def pieces_of(answer: str, size: int) -> list[str]:
    return [answer[at : at + size] for at in range(0, len(answer), size)]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("answer", "expected"), [
    ("<think>\nHm.\n</think>\n\nYes.", ("Hm.", "Yes.", [])),
    ("\n<think>Hm.</think>Yes.", ("Hm.", "Yes.", [])),
    ("<think></think>Yes.", ("", "Yes.", [])),
    ("</think>\nYes.", ("", "Yes.", [])),
    ("<think>Hm", ("Hm", "", [])),
    ("Yes. <think>is a tag</think>", ("", "Yes. <think>is a tag</think>", [])),
    ("<think>a < b </th> c</think>Yes", ("a < b </th> c", "Yes", [])),
    (f"<think>Hm.</think>{CALL}", ("Hm.", "", ["now"])),
    (f"<think>Hm.</think>Yes.{CALL}{CALL}", ("Hm.", "Yes.", ["now", "now"])),
    ('<think>Hm.</think>{"name": "now", "arguments": {}}', ("Hm.", "", ["now"])),
    (f"<think>Maybe {CALL} or not</think>{CALL}", (f"Maybe {CALL} or not", "", ["now"])),
    (f"<think>I call it. {CALL}\n{CALL}\n", ("I call it. ", "", ["now", "now"])),  # the closing tag is missing
    (f"<think>Maybe {CALL} or not", (f"Maybe {CALL} or not", "", [])),  # cut off
    ("<think>Maybe <tool_call>", ("Maybe <tool_call>", "", [])),
])  # fmt: skip
def test_reasoning(answer: str, expected: Expected, size: int) -> None:
    assert parse(parser_of("<tool_call>", THINK), pieces_of(answer, size)) == expected


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("answer", "expected"), [
    ("Hm.\n</think>\n\nYes.", ("Hm.", "Yes.", [])),
    ("</think>Yes.", ("", "Yes.", [])),
    ("<think>\n</think>Yes.", ("", "Yes.", [])),  # the opening tag is repeated
    (CALL, ("", "", ["now"])),
])  # fmt: skip
def test_reasoning_that_the_prompt_opens(answer: str, expected: Expected, size: int) -> None:
    assert parse(parser_of("<tool_call>", THINK, is_reasoning=True), pieces_of(answer, size)) == expected


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("answer", "expected"), [
    ("<|channel>thought\nHm.\n<channel|>Yes.", ("Hm.", "Yes.", [])),
    ("<|channel>thought<channel|>Yes.", ("", "Yes.", [])),
    ("<|channel><|channel>thought\n<channel|>Yes.<channel|>", ("", "Yes.", [])),
    ("One. <|channel>thought\nHm.<channel|>Two.", ("Hm.", "One.Two.", [])),
    ("<|channel>thought\nHm.<channel|><|tool_call>call:now{}<tool_call|>", ("Hm.", "", ["now"])),
    ("a thought", ("", "a thought", [])),
])  # fmt: skip
def test_channels_of_gemma(answer: str, expected: Expected, size: int) -> None:
    assert parse(parser_of("<|tool_call>call:", GEMMA), pieces_of(answer, size)) == expected


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_sections_of_kimi_k3(size: int) -> None:
    answer = (
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>'
    )
    assert parse(parser_of(KIMI_K3, None, is_reasoning=True), pieces_of(answer, size)) == ("Hm.", "I look.", ["now"])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_sections_of_command_r(size: int) -> None:
    for name in "RESPONSE", "TEXT":
        answer = f"<|START_{name}|>I look.<|END_{name}|>"
        assert parse(parser_of("<|START_ACTION|>", None), pieces_of(answer, size)) == ("", "I look.", [])


@pytest.mark.parametrize("tags", TAGS, ids=lambda tags: tags.opening)
def test_tags_of_prompts(tags: ReasoningTags) -> None:
    assert tags.are_open(f"Hi{tags.opening}{tags.label}\n")
    assert not tags.are_open(f"Hi{tags.opening}{tags.label}\n\n{tags.closing}\n")


@pytest.mark.parametrize("answer", [each[:2] for each in ANSWERS])
def test_random_pieces_and_reasoning(answer: tuple[str, str]) -> None:
    template, written = answer
    opening, closing, *_ = find_family(template).reasoning or THINK
    left, pieces = f"{opening}Hm.{closing}{written}", []
    whole = parse(parser_of(template, THINK), [left])
    source = random.Random(written)
    while left:
        size = source.randint(1, 9)
        pieces.append(left[:size])
        left = left[size:]
    assert parse(parser_of(template, THINK), pieces) == whole
    assert whole[0] == "Hm."


def test_reasoning_is_yielded_as_soon_as_possible() -> None:
    parser = parser_of("<tool_call>", THINK)
    pieces = ["<th", "ink>", "\n", "So", " <", "b> ", "</", "think", ">", "\n", "Yes", " "]
    results = [parser.push(piece) for piece in pieces]
    assert [each.reasoning for each in results] == ["", "", "", "So", "", " <b>", "", "", "", "", "", ""]
    assert [each.text for each in results] == [*[""] * 10, "Yes", ""]


def test_find_marker() -> None:
    markers = ("<a>", "<a>b", "<c>")
    assert find_marker("x<a>", markers, False) == (1, "")  # <a>b may follow
    assert find_marker("x<a>", markers, True) == (1, "<a>")
    assert find_marker("x<a>y", markers, False) == (1, "<a>")
    assert find_marker("x<a>b", markers, False) == (1, "<a>b")
    assert find_marker("x <c", markers, False) == (2, "")
    assert find_marker("x <d", markers, False) == (4, "")


# --- arguments that are passed on while they arrive ---


def streaming_parser(template: str = "<tool_call>") -> AnswerParser:
    return AnswerParser(find_family(template), ToolSchemas(TOOLS), streams_arguments=True)


def written_call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', "{}", r'{"city": "\"b\" } {\\", "x": [1, {}]}'])
def test_streamed_arguments(arguments: str, size: int) -> None:
    parser, parsed = streaming_parser(), ParseResult()
    for piece in pieces_of(f"I look. {written_call(arguments)}\n{written_call('{}')}", size):
        parsed = parsed.joined_with(parser.push(piece))
    parsed = parsed.joined_with(parser.finish())
    texts = ["".join(part.text for part in parsed.parts if part.index == index) for index in (0, 1)]
    assert texts == [arguments, "{}"]
    assert {part.name for part in parsed.parts} == {"get_weather"}
    assert (parsed.text, [call.arguments for call in parsed.calls]) == ("I look.", [json.loads(arguments), {}])


def test_streamed_arguments_arrive_early() -> None:
    parser = streaming_parser()
    pieces = ["<tool_call>", '\n{"name": "get', '_weather", "argu', 'ments": {"ci', 'ty": "Pa', 'ris"', "}}", "\n</to"]
    results = [parser.push(piece) for piece in pieces]
    assert ["".join(part.text for part in each.parts) for each in results] == [
        "", "", "", '{"ci', 'ty": "Pa', 'ris"', "}", "",
    ]  # fmt: skip


def test_streamed_arguments_that_are_cut_off() -> None:
    parser = streaming_parser()
    parsed = parser.push('I look. <tool_call>\n{"name": "now", "arguments": {"a": [1').joined_with(parser.finish())
    assert (parsed.text, parsed.calls, parsed.parts[0].text) == ("I look.", (), '{"a": [1')
    assert parsed.problem


def test_arguments_between_tags_are_not_streamed() -> None:
    parser = streaming_parser("<tool_call> <function= <parameter=")
    parsed = parser.push("<tool_call>\n<function=now>\n</function>\n</tool_call>")
    assert ([call.name for call in parsed.calls], parsed.parts) == (["now"], ())
