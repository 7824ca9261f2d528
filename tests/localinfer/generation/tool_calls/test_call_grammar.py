"""Grammars of calls: random texts that they allow are parsed to calls with valid arguments, in each family's syntax."""

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from constraints import BYTE_TRIE, BYTES, ByteTokenizer, trie_of, worker_vocabulary
from llguidance import LLMatcher

from localinfer.errors import ConstraintError, UsageError
from localinfer.generation.structured.byte_vocabulary import ByteVocabulary
from localinfer.generation.structured.closing import Closings
from localinfer.generation.structured.constraint import Constraint
from localinfer.generation.structured.constraint_source import ConstraintSource
from localinfer.generation.structured.constraint_start import AfterMarker
from localinfer.generation.structured.json_schema import rewrite
from localinfer.generation.structured.vocabulary import Vocabulary
from localinfer.generation.tool_calls.addressed_messages import MessageParser
from localinfer.generation.tool_calls.answer_parser import parse_whole
from localinfer.generation.tool_calls.call_constraint import call_constraint
from localinfer.generation.tool_calls.call_grammar import CallGrammar, arguments_schema
from localinfer.generation.tool_calls.call_syntax import CallSyntax
from localinfer.generation.tool_calls.families import FAMILIES, MESSAGE_FORMATS, CallFormat, Family, find_family
from localinfer.generation.tool_calls.tool_call import ToolSchemas, schema_types
from localinfer.generation.tool_calls.tool_choice import ToolChoice

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "required": ["city", "unit"], "properties": {
            "days": {"type": "integer", "minimum": 1, "maximum": 99}, "city": {"type": "string", "maxLength": 60},
            "unit": {"enum": ["celsius", "fahrenheit"]}, "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "place": {"$ref": "#/$defs/place"},
        }, "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
                               "additionalProperties": False}},
    }}},
    {"type": "function", "function": {"name": "files.now"}},
    {"type": "function", "function": {"name": "log", "parameters": {
        "type": "object", "properties": {"level": {"type": "integer"}, "text": {"type": "string"}}}}},
]  # fmt: skip
WITH_SYNTAX = [family for family in FAMILIES if any(call.syntax for call in family.calls)]
ENDINGS = ('"', "}", "]", ")", "\n</parameter>\n", "</parameter>", "</param>", "</arg_value>",
           '<|"|>', "</atem:parameter>\n", "<|close|>argument<|sep|>", "</｜DSML｜parameter>\n", "</function>",
           "</tool_call>", "</invoke>")  # fmt: skip
LOGITS = np.zeros(257, np.float32)


class Tokenizer(ByteTokenizer):
    def split(self, text: str, *, strip: bool = True) -> list[str | int]:
        return [text]


class ControlTokenizer(Tokenizer):
    """A tokenizer with control tokens, too."""

    texts = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|eom|>", '<|"|>',
             "<|tool_call>", "<tool_call|>")  # fmt: skip
    n_vocab = 257 + len(texts)

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        return super().token_bytes(id) if id < 257 else self.texts[id - 257].encode() * special

    def split(self, text: str, *, strip: bool = True) -> list[str | int]:
        parts = re.split(f"({'|'.join(map(re.escape, self.texts))})", text)
        return [257 + self.texts.index(part) if part in self.texts else part for part in parts if part]


TOKENIZER: Any = Tokenizer()
CONTROL_TOKENIZER: Any = ControlTokenizer()
CONTROL = Vocabulary(CONTROL_TOKENIZER, ControlTokenizer.n_vocab)
TRIES = {BYTES: BYTE_TRIE, CONTROL: trie_of(CONTROL)}
BYTE_VOCABULARIES = {each: ByteVocabulary(worker_vocabulary(each)) for each in TRIES}


def random_text(
    grammar: str, source: random.Random, vocabulary: Vocabulary = BYTES, endings: Sequence[str] = ENDINGS
) -> str:
    """Return a random text that a grammar allows."""
    return text_of(random_ids(grammar, source, vocabulary, endings), vocabulary)


def text_of(ids: list[int], vocabulary: Vocabulary) -> str:
    return b"".join(map(vocabulary.visible_bytes, ids)).decode()


def random_ids(grammar: str, source: random.Random, vocabulary: Vocabulary, ends: Sequence[str]) -> list[int]:
    """Return random tokens that a grammar allows. What ends a value is more probable than other bytes."""
    matcher, ids = LLMatcher(TRIES[vocabulary], grammar, log_level=0), list[int]()
    assert not matcher.is_error(), matcher.get_error()
    for _ in range(3000):
        endings = [each for each in map(str.encode, ends) if matcher.validate_tokens(list(each)) == len(each)]
        allowed = [int(id) for id in np.flatnonzero(vocabulary.unpack_mask(matcher.compute_bitmask()))]
        plain = [id for id in allowed if 32 <= id < 127 or id == 10 or id > 256] or allowed
        if 256 in allowed and (source.random() < 0.5 or len(allowed) == 1):
            return ids
        chosen = list(source.choice(endings)) if endings and source.random() < 0.3 else [source.choice(plain)]
        if (special := [id for id in allowed if id > 256]) and source.random() < 0.3:
            chosen = special[:1]
        assert matcher.consume_tokens(chosen)
        ids += chosen
        if matcher.is_stopped():
            return ids
    raise AssertionError(f"no end: {text_of(ids[-200:], vocabulary)!r}")


def endings_of(syntax: CallSyntax) -> list[str]:
    """Return the texts that end values, of all formats and of this one."""
    own = syntax.parameter.partition("$VALUE")[2], syntax.before.partition("$TEXT")[2], syntax.tag_prefix, syntax.quotes
    return list(filter(None, dict.fromkeys([*ENDINGS, *own])))


def call_of(family: Family) -> CallFormat:
    return next(call for call in family.calls if call.syntax)


@pytest.mark.parametrize("family", WITH_SYNTAX, ids=lambda family: " ".join(family.markers))
def test_random_calls_are_valid(family: Family) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="there is no package jsonschema")
    call = call_of(family)
    assert call.syntax
    schemas = {tool["function"]["name"]: arguments_schema(tool["function"], rewrite) for tool in TOOLS}
    names = set()
    for seed in range(12):
        tokenizer, vocabulary = (TOKENIZER, BYTES) if seed % 3 else (CONTROL_TOKENIZER, CONTROL)
        grammar = CallGrammar(call.syntax, (call.opening, call.closing), TOOLS, tokenizer, rewrite)
        text = random_text(
            grammar.text(with_opening=True, is_parallel=seed % 2 == 0), random.Random(seed), vocabulary,
            endings_of(call.syntax))  # fmt: skip
        parsed = parse_whole(family, ToolSchemas(TOOLS), text)
        assert not parsed.problem, text
        assert not parsed.text.strip(), text
        assert len(parsed.calls) == 1 or seed % 2 == 0
        for each in parsed.calls:
            jsonschema.validate(each.arguments, schemas[each.name])
            names.add(each.name)
    assert len(names) > 1


@pytest.mark.parametrize("family", WITH_SYNTAX, ids=lambda family: " ".join(family.markers))
def test_closed_calls_are_valid(family: Family) -> None:
    """From anywhere in random calls, their closing makes them valid."""
    jsonschema = pytest.importorskip("jsonschema", reason="there is no package jsonschema")
    call = call_of(family)
    assert call.syntax
    schemas = {tool["function"]["name"]: arguments_schema(tool["function"], rewrite) for tool in TOOLS}
    for seed in range(6):
        source = random.Random(seed)
        tokenizer, vocabulary = (TOKENIZER, BYTES) if seed % 3 else (CONTROL_TOKENIZER, CONTROL)
        grammar = CallGrammar(call.syntax, (call.opening, call.closing), TOOLS, tokenizer, rewrite).text(
            with_opening=True, is_parallel=seed % 2 == 0)  # fmt: skip
        ids = random_ids(grammar, source, vocabulary, endings_of(call.syntax))
        for end in source.sample(range(len(ids)), 3):
            closings = Closings(grammar, BYTE_VOCABULARIES[vocabulary])
            closings.follow(ids[:end])
            text = text_of([*ids[:end], *(closings.now(1000).ids or [])], vocabulary)
            parsed = parse_whole(family, ToolSchemas(TOOLS), text)
            assert not parsed.problem, text
            assert not parsed.text.strip(), text
            assert parsed.calls
            for each in parsed.calls:
                jsonschema.validate(each.arguments, schemas[each.name])


HERMES = "<tool_call>"
CALL = '<tool_call>\n{"name": "files.now", "arguments": {}}\n</tool_call>'


def constraint_of(choice: str, *, template: str = HERMES, prompt: str = "", is_parallel: bool = False) -> Constraint:
    parsed = ToolChoice.parse(choice)
    constraint = call_constraint(template, TOKENIZER, BYTES, TOOLS, parsed, is_parallel=is_parallel, prompt=prompt)
    assert constraint
    return constraint


def accept(constraint: Constraint, text: str) -> None:
    for byte in text.encode():
        assert not np.isneginf(constraint.mask_logits(LOGITS)[byte]), chr(byte)
        constraint.accept(byte)


def is_free(constraint: Constraint) -> bool:
    return not np.isneginf(constraint.mask_logits(LOGITS)).any()


def test_required_call_begins_at_once() -> None:
    constraint = constraint_of("required")
    accept(constraint, f"\n{CALL}")
    assert constraint.is_complete
    constraint.require_complete(f"\n{CALL}", is_truncated=False)


def test_required_calls_in_parallel() -> None:
    constraint = constraint_of("required", is_parallel=True)
    accept(constraint, f"{CALL}\n{CALL}")
    assert not constraint.is_complete
    constraint.require_complete(f"{CALL}\n{CALL}", is_truncated=False)


def test_named_call() -> None:
    constraint = constraint_of("log")
    accept(constraint, '<tool_call>\n{"name": "log", "arguments": {"level": 7')
    assert not constraint.is_complete
    with pytest.raises(UsageError, match=r"^tool_choice: there is no tool sub"):
        constraint_of("sub")


def test_required_call_after_reasoning() -> None:
    constraint = constraint_of("required", template=f"{HERMES}<think>", prompt="<think>\n")
    accept(constraint, f"Hm. {CALL} </think>")
    assert not is_free(constraint)
    accept(constraint, f"\n\n{CALL}")
    assert constraint.is_complete


def test_optional_call_is_constrained_after_its_opening() -> None:
    constraint = constraint_of("auto")
    accept(constraint, "I look. <tool_cal")
    assert is_free(constraint)
    accept(constraint, "l>")
    assert not is_free(constraint)
    accept(constraint, CALL.removeprefix("<tool_call>"))
    assert constraint.is_complete
    constraint_of("auto").require_complete("I look.", is_truncated=False)


@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_optional_call_after_reasoning(prompt: str) -> None:
    constraint = constraint_of("auto", template=f"{HERMES}<think>", prompt=prompt)
    accept(constraint, f"{'' if prompt else '<think>'}Maybe <tool_call>{{}}</tool_call></think>\nYes. <tool_call>")
    assert not is_free(constraint)
    accept(constraint, CALL.removeprefix("<tool_call>"))
    assert constraint.is_complete


@pytest.mark.parametrize("markers", MESSAGE_FORMATS, ids=" ".join)
def test_random_messages_are_valid(markers: tuple[str, ...]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="there is no package jsonschema")
    messages = MESSAGE_FORMATS[markers]
    schemas = {tool["function"]["name"]: arguments_schema(tool["function"], rewrite) for tool in TOOLS}
    for seed in range(8):
        grammar = CallGrammar(messages.syntax, (messages.opening, ""), TOOLS, CONTROL_TOKENIZER, rewrite)
        text = random_text(grammar.text(with_opening=True, is_parallel=False), random.Random(seed), CONTROL)
        parser = MessageParser(messages, ToolSchemas(TOOLS))
        parsed = parser.push(text).joined_with(parser.finish())
        assert (parsed.text.strip(), parsed.problem) == ("", ""), text
        [call] = parsed.calls
        jsonschema.validate(call.arguments, schemas[call.name])


@pytest.mark.parametrize(("opening", "closing"), [("", ""), ("```json\n", "\n```"), ("<think>Hm.</think>\n", "")])
def test_optional_call_without_delimiters(opening: str, closing: str) -> None:
    constraint = constraint_of("auto", template=f"{HERMES}<think>")
    accept(constraint, opening + '{\n  "name": "log"')
    assert is_free(constraint)
    accept(constraint, ",")
    assert not is_free(constraint)
    accept(constraint, '\n  "arguments": {\n    "level": 7,\n    "text": "a"\n  }\n}' + closing)
    assert constraint.is_complete or not np.isneginf(constraint.mask_logits(LOGITS)[256])


def test_json_that_is_no_call() -> None:
    constraint = constraint_of("auto")
    accept(constraint, '{"name": "Ada", "level": 7}')
    assert is_free(constraint)


def test_calls_of_channels() -> None:
    constraint = constraint_of("auto", template="<|channel|> <|message|>")
    accept(constraint, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant")
    assert is_free(constraint)
    accept(constraint, "<|channel|>commentary to=functions.")
    assert not is_free(constraint)
    accept(constraint, "files.now <|constrain|>json<|message|>{}")
    assert constraint.is_complete


@pytest.mark.parametrize("template", [HERMES, "<tool_call> <function= <parameter=", "<|tool_call>call:", "nothing"])
@pytest.mark.parametrize("parameters", [
    None, [], [1], 5, {}, {"properties": {"a": True}}, {"properties": {"a": {}}, "required": ["b"]},
    {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
    {"properties": {"a\"<b>": {"type": ["string", "null"]}, "c": {"enum": [1, "x"]}, "d": {"anyOf": []}}},
    {"properties": {"a": {"type": "object", "properties": {"b": {"type": "array"}}}}}, {"type": 5}, {"properties": 5},
    {"properties": {}, "required": [{}]},
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:tool f")
def test_unusual_schemas(template: str, parameters: object) -> None:
    """Those that are no JSON schemas cannot be forced."""
    is_refused = parameters in ({"type": 5}, {"properties": 5}, {"properties": {}, "required": [{}]})
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}, {"type": "web_search"}]
    for choice in "auto", "required", "f":
        parsed = ToolChoice.parse(choice)
        if choice != "auto" and is_refused:
            with pytest.raises(ConstraintError, match=r"^tool f: "):
                call_constraint(template, TOKENIZER, BYTES, tools, parsed, is_parallel=True, prompt="")
            continue
        constraint = call_constraint(template, TOKENIZER, BYTES, tools, parsed, is_parallel=True, prompt="")
        assert constraint
        accept(constraint, "<tool_call>" if template != "<|tool_call>call:" else "<|tool_call>")
        assert not is_free(constraint)


def test_nested_elements() -> None:
    """MiniMax M3's properties of objects and elements of lists have tags, too, unless the schema names none."""
    function = {"name": "f", "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "object", "required": ["at", "item"], "properties": {
            "at": {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "item": {"type": "string"}}},
        "only": {"type": "object", "properties": {"item": {"type": "integer"}}}, "more": {"type": "object"}}}}
    places = "<place><at><item>1</item><item>2</item></at><item>5</item></place><only><item>1</item></only>"
    arguments = f'{places}<more>{{"x": [1]}}</more>'
    text = f'<tool_call>\n<invoke name="f">{arguments}</invoke>\n</tool_call>'.replace("<", "]<]minimax[>[<")
    constraint = call_constraint(
        "]<]minimax[>[", TOKENIZER, BYTES, [function], ToolChoice("required"), is_parallel=False, prompt=""
    )
    assert constraint
    accept(constraint, text)
    assert constraint.is_complete
    family = find_family("]<]minimax[>[")
    [call] = parse_whole(family, ToolSchemas([function]), text).calls
    assert call.arguments == {"place": {"at": [1, 2], "item": "5"}, "only": {"item": 1}, "more": {"x": [1]}}


def test_tools_without_functions() -> None:
    tools = [{"type": "web_search"}, {"function": {"name": 5}}, {"function": "f"}]
    assert call_constraint(HERMES, TOKENIZER, BYTES, tools, ToolChoice("auto"), is_parallel=True, prompt="") is None
    with pytest.raises(UsageError, match=r"^tool_choice: required needs tools"):
        call_constraint(HERMES, TOKENIZER, BYTES, tools, ToolChoice("required"), is_parallel=True, prompt="")


def test_schema_that_cannot_be_compiled() -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "no type"}}}}
    with pytest.warns(UserWarning, match="^tool f: its arguments are not constrained"):
        assert arguments_schema(function, rewrite) == {"type": "object"}
    with pytest.raises(ConstraintError, match="no type"):
        arguments_schema(function, rewrite, is_strict=True)


def test_arguments_schema() -> None:
    no_arguments = {"type": "object", "properties": {}, "additionalProperties": False}
    assert arguments_schema({"name": "f"}, rewrite) == no_arguments
    assert arguments_schema({"name": "f", "parameters": {"type": "object"}}, rewrite) == {"type": "object"}
    open_schema = {"type": "object", "properties": {}, "additionalProperties": True}
    assert arguments_schema({"name": "f", "parameters": open_schema}, rewrite) == open_schema
    unnamed = {"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}  # an object without b is invalid
    assert arguments_schema({"name": "f", "parameters": unnamed}, rewrite, is_strict=True) == unnamed


@pytest.mark.parametrize("types", [{}, {"type": ["string", "null", "integer"]}])
def test_constants_of_several_types(types: dict[str, Any]) -> None:
    """Where strings have no quotes, null and numbers are written and read as JSON."""
    family = next(family for family in FAMILIES if family.name == "qwen3-coder")
    values = ["a", None, 12]
    tool = {"name": "f", "parameters": {"properties": {"x": {"enum": values, **types}}, "required": ["x"]}}
    call = call_of(family)
    assert call.syntax
    grammar = CallGrammar(call.syntax, (call.opening, call.closing), [tool], TOKENIZER, rewrite)
    texts = {random_text(grammar.text(with_opening=True, is_parallel=False), random.Random(seed)) for seed in range(20)}
    calls = [call for text in texts for call in parse_whole(family, ToolSchemas([tool]), text).calls]
    assert {each.arguments["x"] for each in calls} == set(values)


@pytest.mark.parametrize("schema", [{"anyOf": None}, {"type": 5}, {"type": [{}]}, {"enum": 5}, {"allOf": [3]}])
def test_types_of_invalid_schemas(schema: dict[str, Any]) -> None:
    assert schema_types(schema) == set()


def test_reasoning_is_allowed_once() -> None:
    constraint = Constraint(ConstraintSource("regex", "[0-9]+", "--regex"), BYTES,
                            reasoning=(ord("<"), AfterMarker(">")))  # fmt: skip
    try:
        assert constraint.mask_logits(LOGITS)[ord("<")] == 0
        accept(constraint, "<thought>")
        assert constraint.mask_logits(LOGITS)[ord("<")] == -np.inf
        accept(constraint, "1")
    finally:
        constraint.close()


@pytest.mark.parametrize("limits", [{"maxItems": 1}, {"minItems": 1, "maxItems": 1}, {"minItems": 1, "maxItems": 2}])
def test_limits_of_a_list(limits: dict[str, int]) -> None:
    """Grammars have no element that is repeated zero times."""
    family = next(family for family in FAMILIES if family.name == "gemma")
    items = {"type": "string", "maxLength": 2}
    tool = {"name": "f", "parameters": {"properties": {"x": {"type": "array", "items": items, **limits}},
                                        "required": ["x"]}}  # fmt: skip
    call = call_of(family)
    assert call.syntax
    grammar = CallGrammar(call.syntax, (call.opening, call.closing), [tool], TOKENIZER, rewrite)
    text = grammar.text(with_opening=True, is_parallel=False)
    sizes = set()
    for seed in range(10):
        [parsed] = parse_whole(family, ToolSchemas([tool]), random_text(text, random.Random(seed))).calls
        sizes.add(len(parsed.arguments["x"]))  # type: ignore[arg-type]
    assert min(sizes) >= limits.get("minItems", 0)
    assert max(sizes) <= limits["maxItems"]
