"""Keywords that no mask enforces, and where an invalid value begins."""

import json
from typing import Any

import pytest

from localinfer.generation.structured.answer_check import answer_problem, validator_of, value_offset
from localinfer.generation.structured.json_schema import rewrite, schema_to_grammar
from localinfer.generation.structured.schema_limits import unmasked_keywords


def unmasked(schema: Any) -> list[str]:
    return unmasked_keywords(schema, schema_to_grammar(schema, "schema")[1])


@pytest.mark.parametrize(("schema", "pointers"), [
    ({"type": "string", "pattern": "^(?!a)"}, ["#/pattern"]),
    ({"type": "string", "pattern": "^a"}, []),
    ({"properties": {"a": {"items": {"pattern": "(?<=a)b"}}}}, ["#/properties/a/items/pattern"]),
    ({"$defs": {"b": {"propertyNames": {"pattern": "a"}}}, "$ref": "#/$defs/b"}, ["#/$defs/b/propertyNames"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["#/oneOf"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, []),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "string"}], "$defs": {"a": {"type": "integer"}}}, []),
    ({"type": "array", "uniqueItems": True}, ["#/uniqueItems"]),
    ({"type": "array", "uniqueItems": False, "contains": {}, "minContains": 2}, ["#/contains", "#/minContains"]),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}}, []),
    ({"not": {"type": "string"}}, []),
    ({"not": {"type": "integer"}}, ["#/not"]),
    ({"not": {"enum": ["a", None, True]}}, []),
    ({"not": {"const": 3}}, ["#/not"]),
    ({"not": {"pattern": "a"}}, ["#/not"]),
    ({"not": {"required": ["a"]}, "type": "object"}, []),
    ({"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}, "type": "object"}, []),
    ({"if": {"minProperties": 2}, "then": {"required": ["b"]}, "type": "object"}, ["#/if"]),
    ({"patternProperties": {"^a": {}, "b": {}}}, ["#/patternProperties"]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, []),
    (True, []),
])  # fmt: skip
def test_unmasked_keywords(schema: Any, pointers: list[str]) -> None:
    assert unmasked(schema) == pointers


def test_large_schemas_are_searched_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.generation.structured.schema_limits.MAX_SECONDS", 0.0)
    assert unmasked({"type": "array", "uniqueItems": True}) == []


def test_integers_with_a_fraction_of_zero() -> None:
    limits = {"minItems": 1.0, "maxItems": 3.0, "items": {"minLength": 2.0, "maxLength": 4.0}}
    rewritten, problem = rewrite({"type": "array", **limits})
    assert not problem
    integers = {"minItems": 1, "maxItems": 3, "items": {"minLength": 2, "maxLength": 4}}
    assert json.dumps(rewritten) == json.dumps({"type": "array", **integers})
    assert rewrite({"type": "object", "minProperties": 1.0, "maxProperties": 2.0})[1] == ""
    assert rewrite({"type": "array", "maxItems": 3.5})[1]
    unique = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 2.0}
    assert len(rewrite(unique)[0]["allOf"][0]["anyOf"]) == 3  # what is no array, and two orders


TEXT = ' {"a" : [1, {"b": "x,]}"} ], "c":{}, "a": [ 2,\n3]}'


@pytest.mark.parametrize(("path", "rest"), [
    ((), '{"a" : '), (("c",), '{}, "a"'), (("a",), "[ 2,"), (("a", 0), "2,"), (("a", 1), "3]}"),
])  # fmt: skip
def test_value_offset(path: tuple[str | int, ...], rest: str) -> None:
    assert TEXT[value_offset(TEXT, path) :].startswith(rest)


def test_problem_names_the_value_and_the_keyword() -> None:
    schema = {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"pattern": "^(?!x)"}}}
    problem, offset = answer_problem('["a", "xy"]', validator_of(schema))
    assert problem == "#/1: 'xy' does not match '^(?!x)' (schema: #/items/pattern)"
    assert offset == len('["a", ')
