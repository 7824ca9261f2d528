"""Keywords of schemas that llguidance does not implement: what the grammar allows, and what the final check finds."""

import itertools
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from constraints import BYTES, constraint_spec, matcher_of

from localinfer import ConstraintError, InvalidOutputError
from localinfer.generation.structured.answer_check import answer_problem, validator_of
from localinfer.generation.structured.constraint import Constraint
from localinfer.generation.structured.constraint_source import ConstraintSource
from localinfer.generation.structured.schema_rewriting import other_texts

DOCUMENTS: list[Any] = [
    None, True, False, 0, 1, -7, 2.5, "", "a", "ab", "abc", "b", 'q"\n', [], [1], [1, 1], ["a", "b"], ["b", "a"], {},
    {"a": 1}, {"b": "x"}, {"a": 1, "b": 2}, {"a": "x", "c": 0}, [[1], [1]], [True, False], [True, True],
]  # fmt: skip


def accepts(schema: dict[str, Any], document: object) -> bool:
    """Return whether the grammar allows a document, with properties in any order."""
    matcher = matcher_of(constraint_spec(json_schema=json.dumps(schema)).grammar)
    orders = map(dict, itertools.permutations(document.items())) if isinstance(document, dict) else [document]
    for each in orders:
        matcher.reset()
        text = json.dumps(each).encode()
        if matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting():
            return True
    return False


def is_valid(schema: dict[str, Any], document: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(document))


EXPRESSIBLE: list[dict[str, Any]] = [
    {"not": {"type": "string"}}, {"not": {"type": ["object", "array", "null"]}}, {"not": {"enum": ["a", "ab", None]}},
    {"type": "string", "not": {"const": "a"}}, {"type": "string", "not": {"enum": ["", "abc"]}},
    {"type": "boolean", "not": {"const": True}}, {"not": {"required": ["a"]}}, {"not": {"required": ["a", "b"]}},
    {"type": "object", "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"not": {"allOf": [{"type": "string"}, {"enum": ["a"]}]}}, {"not": {"not": {"type": "array"}}},
    {"type": "object", "not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
    {"dependentRequired": {"a": ["b"]}}, {"dependencies": {"a": {"required": ["c"]}}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"type": "object"}},
    {"type": "array", "items": {"enum": [1, "a", "b"]}, "uniqueItems": True},
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1},
    {"$defs": {"x": {"enum": ["a", "b"]}}, "items": {"$ref": "#/$defs/x"}, "uniqueItems": True},
]  # fmt: skip


@pytest.mark.parametrize("schema", EXPRESSIBLE, ids=json.dumps)
def test_grammar_allows_what_the_schema_allows(schema: dict[str, Any]) -> None:
    expected = [each for each in DOCUMENTS if is_draft_valid(schema, each)]
    assert [each for each in DOCUMENTS if accepts(schema, each)] == expected


def is_draft_valid(schema: dict[str, Any], document: object) -> bool:
    """`dependencies` is a keyword of earlier drafts."""
    draft = jsonschema.Draft7Validator if "dependencies" in schema else jsonschema.Draft202012Validator
    return bool(draft(schema).is_valid(document))


@pytest.mark.parametrize("schema", [
    {"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"type": "array", "uniqueItems": True},
    {"not": {"pattern": "^a"}}, {"propertyNames": {"maxLength": 0}}, {"contains": {"const": 1}},
    {"type": "string", "pattern": "^(?!a)"}, {"type": "string", "format": "unheard-of"},
    {"patternProperties": {"^a": {"type": "integer"}, "^[a-z]": {}}}, {"type": "object", "minProperties": 2},
    {"not": {"const": 0}}, {"unevaluatedProperties": False},
    {"type": "array", "items": {"enum": list(range(20))}, "uniqueItems": True},
])  # fmt: skip
def test_no_valid_document_is_excluded(schema: dict[str, Any]) -> None:
    """The answer is checked at the end."""
    assert [each for each in DOCUMENTS if is_valid(schema, each) and not accepts(schema, each)] == []
    validator = validator_of(schema)
    for each in DOCUMENTS:
        assert (answer_problem(json.dumps(each), validator) == ("", 0)) == is_valid(schema, each)


def test_unique_values_of_a_larger_enum_keep_its_order() -> None:
    names = ["red", "green", "blue", "cyan", "black", "white", "grey"]
    schema = {"type": "array", "items": {"enum": names}, "uniqueItems": True, "minItems": 2}
    assert accepts(schema, ["red", "blue", "grey"])
    assert not accepts(schema, ["blue", "red"])
    assert not accepts(schema, ["red", "red"])


def test_texts_other_than_some_words() -> None:
    random = np.random.default_rng(0)
    every = ["".join(chars) for n in range(4) for chars in itertools.product("ab]", repeat=n)]
    for _ in range(10):
        words = {str(word) for word in random.choice(every, 5)}
        matcher = matcher_of(constraint_spec(regex=other_texts(words)).grammar)
        for text in every:
            matcher.reset()
            consumed = matcher.try_consume_tokens(list(text.encode())) == len(text)
            assert (consumed and matcher.is_accepting()) == (text not in words)


# --- the finished answer ---


def check(schema: object, answer: str) -> None:
    constraint = Constraint(ConstraintSource("json_schema", json.dumps(schema), "--json-schema"), BYTES)
    for byte in answer.encode():
        constraint.accept(byte)
    try:
        constraint.require_complete(answer, is_truncated=False)
    finally:
        constraint.close()


@pytest.mark.parametrize(("schema", "answer", "problem"), [
    ({"type": "array", "uniqueItems": True}, "[1, 1]", r"#: \[1, 1\] has non-unique elements"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "3", "#: 3 is valid under each of "),
    ({"properties": {"a": {"not": {"pattern": "^x"}}}}, '{"a": "xy"}', "#/a: 'xy' should not be valid under "),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"contains": {}}}}, '{"a": []}', "#/a: "),
])  # fmt: skip
def test_answer_that_violates_the_schema(schema: object, answer: str, problem: str) -> None:
    start, warning = f"^--json-schema: the answer does not match the schema: {problem}", "checked only at the end"
    with pytest.warns(UserWarning, match=warning), pytest.raises(InvalidOutputError, match=start) as error:
        check(schema, answer)
    assert error.value.exit_code == 6


def test_valid_answers() -> None:
    with pytest.warns(UserWarning, match="^--json-schema: checked only at the end: #/uniqueItems$"):
        check({"type": "array", "uniqueItems": True}, "[1, 2]")
    check({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}, "4")
    check({"type": "array", "items": [{"type": "integer"}]}, "[1]")  # of draft 7 or earlier, and names none


@pytest.mark.parametrize("schema", [
    {"required": "a"}, {"properties": {"a": {"uniqueItems": 3}}}, {"$ref": "http://example.com/other"},
    {"type": "string", "pattern": "("}, {"not": {}}, {"$ref": "#"},
    {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {}]}}}, {"allOf": [{"type": "string"}, {"not": {}}]},
])  # fmt: skip
def test_invalid_schemas_are_refused(schema: object) -> None:
    with pytest.raises(ConstraintError, match=r"^--json-schema: .{1,300}$"):
        check(schema, "")
