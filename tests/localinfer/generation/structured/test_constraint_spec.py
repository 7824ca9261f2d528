"""Constraint specifications: schemas, patterns, choices, and errors that name the location in the schema."""

import json
from pathlib import Path
from typing import Any

import pytest
from constraints import constraint_spec, matcher_of

from localinfer.errors import ConstraintError, UsageError
from localinfer.generation.structured.json_schema import schema_text

STRING = {"type": "string"}


def accepts(text: str, **options: Any) -> bool:
    matcher = matcher_of(constraint_spec(**options).grammar)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def nested(subschema: object) -> str:
    """Return a schema that contains the subschema at #/properties/a/items."""
    return json.dumps({"type": "object", "properties": {"a": {"type": "array", "items": subschema}}})


@pytest.mark.parametrize(("options", "good", "bad"), [
    ({"json_mode": True}, ['{"a": [1, null]}', "{}"], ["[]", "1", '{"a"}']),
    ({"json_schema": json.dumps(STRING)}, ['"x"'], ["1", '"x', "x"]),
    ({"json_schema": "true"}, ["1", '[{"a": "b"}]'], ["x"]),
    ({"regex": r"\d{3}-[a-z]+"}, ["555-ab"], ["55-ab", "555-ab "]),
    ({"regex": "^(a|abc)$"}, ["a", "abc"], ["ab"]),
    ({"choice": ("a", "abc", "b.c", " /d\\")}, ["a", "abc", "b.c", " /d\\"], ["ab", "bxc", "", "d"]),
    ({"grammar": 'root ::= "a"+'}, ["aa"], ["", "b"]),
])  # fmt: skip
def test_constraints_accept_only_matching_texts(options: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(text, **options)] == []
    assert [text for text in bad if accepts(text, **options)] == []


def test_schema_and_grammar_files(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "list.gbnf"
    schema.write_text("\ufeff" + json.dumps(STRING), "utf-8")
    grammar.write_text('root ::= "ä"', "utf-8")
    assert accepts('"x"', json_schema_file=str(schema))
    assert accepts("ä", grammar_file=str(grammar))


def test_white_space_in_json_is_limited() -> None:
    """Without a limit, a small model may generate white space forever."""
    assert accepts('{\n  "a" : 1,\n\n  "b": [ 2 ]\n}', json_mode=True)
    assert not accepts('{   "a": 1}', json_mode=True)
    assert not accepts('{\n\n\n"a": 1}', json_mode=True)


@pytest.mark.parametrize(("schema", "problem"), [
    (nested({"type": "kaboom"}), "#/properties/a/items: Invalid type: kaboom"),
    (nested({"type": 123}), "#/properties/a/items: type must be a string or array of strings"),
    (nested({"anyOf": [STRING, {"pattern": "("}]}),
     "#/properties/a/items/anyOf/1: regex parse error: ( ^ error: unclosed group"),
    (nested({"$ref": "#/nope"}), "#/properties/a/items: Pointer '/nope' does not exist"),
    (json.dumps({"$ref": "#/$defs/n", "$defs": {"n": {"type": 1}}}),
     "#/$defs/n: type must be a string or array of strings"),
    ("false", "#: no document matches the schema false"), ("3", "#: a schema is an object, not 3"),
])  # fmt: skip
def test_unsupported_schema_error_names_the_location(schema: str, problem: str) -> None:
    with pytest.raises(ConstraintError) as error:
        constraint_spec(json_schema=schema)
    assert str(error.value) == f"--json-schema: {problem}"
    assert error.value.exit_code == 6


@pytest.mark.parametrize("schema", [
    nested({"type": "string", "pattern": "^(a$"}),
    nested({"$ref": "http://example.com/schema"}), json.dumps({"a": {"$ref": "#/a"}, "$ref": "#/a"}),
    json.dumps({"enum": [f"word {n}" for n in range(100_000)]}), '{"type":', "[" * 100_000, "{" * 5 + "\x00",
    '{"type": "array", "items": ' * 900 + "{}" + "}" * 900,
])  # fmt: skip
def test_invalid_schema_error_is_one_line(schema: str) -> None:
    with pytest.raises(ConstraintError, match=r"^--json-schema: .{1,500}$"):
        constraint_spec(json_schema=schema)


@pytest.mark.parametrize(("pattern", "problem"), [
    ("(abc", "unclosed group"), ("a(?=b)", "look-around, including look-ahead and look-behind, is not supported"),
    (r"(a)\1", "backreferences are not supported"), ("a{2,1}", "invalid repetition count range"),
])  # fmt: skip
def test_invalid_patterns(pattern: str, problem: str) -> None:
    with pytest.raises(ConstraintError, match=rf"^--regex: {problem}"):
        constraint_spec(regex=pattern)


def test_constraints_are_mutually_exclusive() -> None:
    with pytest.raises(UsageError, match=r"^--json-mode and --regex: mutually exclusive$"):
        constraint_spec(regex="a", json_mode=True)


@pytest.mark.parametrize("path", ["/nowhere/s.json", "/", "a\0b"])
def test_unreadable_files(path: str) -> None:
    with pytest.raises(UsageError, match=r"^--json-schema-file: .{1,100}$"):
        constraint_spec(json_schema_file=path)


def test_binary_file(tmp_path: Path) -> None:
    (tmp_path / "g").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"^--grammar-file: .*g: .*utf-8"):
        constraint_spec(grammar_file=str(tmp_path / "g"))


def test_python_schema_objects() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, object]:
            return STRING

    class Adapter:
        def json_schema(self) -> dict[str, object]:
            return STRING

    for schema in (STRING, json.dumps(STRING), Model, Adapter()):
        assert json.loads(schema_text(schema)) == STRING
    for wrong in (3, None, [STRING]):
        with pytest.raises(UsageError, match=r"^schema: must be a dict, a text or a pydantic model, not "):
            schema_text(wrong)
    with pytest.raises(ConstraintError, match=r"^schema: "):
        schema_text({"enum": [object()]})
