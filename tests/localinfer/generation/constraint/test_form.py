"""What form an answer shall have: schemas, patterns, choices, and errors that name the place before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from constraints import matcher_of

from localinfer.errors import BadForm, UsageError
from localinfer.generation.constraint import form_of
from localinfer.generation.constraint.json_schema import text_of
from localinfer.options import Options

STRING = {"type": "string"}


def accepts(text: str, **options: Any) -> bool:
    matcher = matcher_of(form_of(Options(**options)).grammar)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def within(part: object) -> str:
    """A schema with the part in its depth."""
    return json.dumps({"type": "object", "properties": {"a": {"type": "array", "items": part}}})


@pytest.mark.parametrize(("options", "good", "bad"), [
    ({"json_mode": True}, ['{"a": [1, null]}', "{}"], ["[]", "1", '{"a"}']),
    ({"json_schema": json.dumps(STRING)}, ['"x"'], ["1", '"x', "x"]),
    ({"json_schema": "true"}, ["1", '[{"a": "b"}]'], ["x"]),
    ({"regex": r"\d{3}-[a-z]+"}, ["555-ab"], ["55-ab", "555-ab "]),
    ({"regex": "^(a|abc)$"}, ["a", "abc"], ["ab"]),
    ({"choice": ("a", "abc", "b.c", " /d\\")}, ["a", "abc", "b.c", " /d\\"], ["ab", "bxc", "", "d"]),
    ({"grammar": 'root ::= "a"+'}, ["aa"], ["", "b"]),
])  # fmt: skip
def test_forms(options: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(text, **options)] == []
    assert [text for text in bad if accepts(text, **options)] == []


def test_files(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "list.gbnf"
    schema.write_text("\ufeff" + json.dumps(STRING), "utf-8")
    grammar.write_text('root ::= "ä"', "utf-8")
    assert accepts('"x"', json_schema_file=str(schema))
    assert accepts("ä", grammar_file=str(grammar))


def test_spaces_in_json_are_few() -> None:
    """Otherwise a small model may write them without end."""
    assert accepts('{\n  "a" : 1,\n\n  "b": [ 2 ]\n}', json_mode=True)
    assert not accepts('{   "a": 1}', json_mode=True)
    assert not accepts('{\n\n\n"a": 1}', json_mode=True)


@pytest.mark.parametrize(("schema", "problem"), [
    (within({"not": STRING}), '#/properties/a/items: Unimplemented keys: ["not"]'),
    (within({"type": "kaboom"}), "#/properties/a/items: Invalid type: kaboom"),
    (within({"type": 123}), "#/properties/a/items: type must be a string or array of strings"),
    (within({"type": "array", "uniqueItems": True}), '#/properties/a/items: Unimplemented keys: ["uniqueItems"]'),
    (within({"anyOf": [STRING, {"type": "string", "format": "x"}]}), "#/properties/a/items/anyOf/1: Unknown format: x"),
    (within({"$ref": "#/nope"}), "#/properties/a/items: Pointer '/nope' does not exist"),
    (json.dumps({"$ref": "#/$defs/n", "$defs": {"n": {"if": {}}}}), '#/$defs/n: Unimplemented keys: ["if"]'),
    ("false", "#: a schema is an object, not false"), ("3", "#: a schema is an object, not 3"),
])  # fmt: skip
def test_what_is_not_supported_is_named_with_its_place(schema: str, problem: str) -> None:
    with pytest.raises(BadForm) as error:
        form_of(Options(json_schema=schema))
    assert str(error.value) == f"--json-schema: {problem}"
    assert error.value.exit_code == 6


@pytest.mark.parametrize("schema", [
    within({"type": "string", "pattern": "^(a$"}), within({"type": "string", "pattern": "(?<=a)b"}),
    within({"$ref": "http://example.com/schema"}), json.dumps({"a": {"$ref": "#/a"}, "$ref": "#/a"}),
    json.dumps({"enum": [f"word {n}" for n in range(100_000)]}), '{"type":', "[" * 100_000, "{" * 5 + "\x00",
    '{"type": "array", "items": ' * 900 + "{}" + "}" * 900,
])  # fmt: skip
def test_bad_schemas_are_one_line(schema: str) -> None:
    with pytest.raises(BadForm, match=r"^--json-schema: .{1,500}$"):
        form_of(Options(json_schema=schema))


@pytest.mark.parametrize(("pattern", "problem"), [
    ("(abc", "unclosed group"), ("a(?=b)", "look-around, including look-ahead and look-behind, is not supported"),
    (r"(a)\1", "backreferences are not supported"), ("a{2,1}", "invalid repetition count range"),
])  # fmt: skip
def test_bad_patterns(pattern: str, problem: str) -> None:
    with pytest.raises(BadForm, match=rf"^--regex: {problem}"):
        form_of(Options(regex=pattern))


def test_an_answer_has_one_form() -> None:
    with pytest.raises(UsageError, match=r"^--json-mode and --regex: an answer has one form$"):
        form_of(Options(regex="a", json_mode=True))


@pytest.mark.parametrize("path", ["/nowhere/s.json", "/", "a\0b"])
def test_files_that_cannot_be_read(path: str) -> None:
    with pytest.raises(UsageError, match=r"^--json-schema-file: .{1,100}$"):
        form_of(Options(json_schema_file=path))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "g").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"^--grammar-file: .*g: .*utf-8"):
        form_of(Options(grammar_file=str(tmp_path / "g")))


def test_schemas_of_python() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, object]:
            return STRING

    class Adapter:
        def json_schema(self) -> dict[str, object]:
            return STRING

    for schema in (STRING, json.dumps(STRING), Model, Adapter()):
        assert json.loads(text_of(schema)) == STRING
    for wrong in (3, None, [STRING]):
        with pytest.raises(UsageError, match=r"^schema: must be a dict, a text or a pydantic model, not "):
            text_of(wrong)
    with pytest.raises(BadForm, match=r"^schema: "):
        text_of({"enum": [object()]})
