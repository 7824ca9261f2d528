"""JSON schemas: parsing, and conversion to grammars. Unsupported keywords are reported with their JSON pointer."""

import json
from collections.abc import Iterator
from typing import Any

from localinfer.errors import ConstraintError, UsageError
from localinfer.escaping import printable

OPTIONS = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}  # as in llama.cpp; limits white space
DEFINITIONS = ("$defs", "definitions")
TABLES = (*DEFINITIONS, "properties", "patternProperties")  # keywords whose values map names to schemas
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
MAX_DEPTH = 30  # nesting levels that are searched for a problem

Schema = dict[str, Any]


def schema_text(schema: object) -> str:
    """Return the JSON text of a schema given as a dict, a string, or a pydantic model or type adapter."""
    for name in ("model_json_schema", "json_schema"):  # methods of a pydantic model and of a type adapter
        if callable(getattr(schema, name, None)):
            schema = getattr(schema, name)()
            break
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, dict):
        type_name = type(schema).__name__
        raise UsageError(f"schema: must be a dict, a text or a pydantic model, not {type_name}")
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"schema: {error}") from None


def parse_json(text: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConstraintError(f"{flag}: not JSON: {printable(str(error), 200)}") from None
    except RecursionError:
        raise ConstraintError(f"{flag}: nested too deeply") from None


def schema_to_grammar(schema: Any, flag: str) -> str:
    """Convert a schema to llguidance's format. Raises ConstraintError with the JSON pointer of an
    invalid or unsupported part."""
    if schema is True:  # equivalent
        schema = {}
    if not isinstance(schema, dict):
        raise ConstraintError(f"{flag}: #: a schema is an object, not {printable(json.dumps(schema), 40)}")
    problem = schema_problem(schema)
    if problem:
        raise ConstraintError(f"{flag}: {printable(problem_pointer(problem, schema), 200)}: {printable(problem, 300)}")
    return compiled(schema)


def compiled(schema: Schema) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=OPTIONS)  # type: ignore[arg-type]


def schema_problem(schema: Schema) -> str:
    """Return the reason why llguidance cannot compile a schema, in one line; "" if it can."""
    from llguidance import LLMatcher

    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(compiled(schema))
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return " ".join(messages[0].split()) if failed else ""


def problem_pointer(problem: str, schema: Schema) -> str:
    """Return a JSON pointer to the innermost subschema that has this problem by itself."""
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    path = "#"
    for _ in range(MAX_DEPTH):
        failing = (
            (pointer, subschema)
            for pointer, subschema in subschemas(schema)
            if schema_problem(definitions | subschema) == problem
        )
        pointer, schema = next(failing, ("", {}))
        path += pointer
    return path


def subschemas(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the direct subschemas with their JSON pointers."""
    for keyword in (*TABLES, *LISTS, *SINGLE):
        value = schema.get(keyword)
        if keyword in TABLES and isinstance(value, dict):
            candidates = [(f"/{keyword}/{name}", subschema) for name, subschema in value.items()]
        elif keyword in LISTS and isinstance(value, list):
            candidates = [(f"/{keyword}/{number}", subschema) for number, subschema in enumerate(value)]
        else:
            candidates = [(f"/{keyword}", value)]
        yield from ((pointer, subschema) for pointer, subschema in candidates if isinstance(subschema, dict))
