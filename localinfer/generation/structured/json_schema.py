"""JSON schemas: parsing, and conversion to grammars. Unsupported keywords are reported with their JSON pointer."""

import json
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any

from localinfer.errors import ConstraintError, UsageError
from localinfer.escaping import printable

from .schema_compiler import compiled, grammar_problem
from .schema_references import has_endless_reference
from .schema_rewriting import DEFINITIONS, LISTS, SINGLE, TABLES, Schema, SchemaRewriter

UNSATISFIABLE = "Unsatisfiable schema"  # llguidance's error for a schema that no document matches
MAX_DEPTH = 30  # nesting levels that are searched for a problem


def schema_text(schema: object) -> str:
    """Return the JSON text of a schema given as a dict, a string, or a pydantic model or type adapter."""
    for name in ("model_json_schema", "json_schema"):  # methods of a pydantic model and of a type adapter
        if callable(getattr(schema, name, None)):
            schema = getattr(schema, name)()
            break
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, dict | bool):
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


class Variant(Enum):
    """What became of the keywords that llguidance does not implement."""

    NARROWED = "rewritten"
    WIDENED = "dropped"
    ORIGINAL = "left, because rewriting failed"


def schema_to_grammar(schema: Any, flag: str) -> tuple[str, Variant]:
    """Convert a schema to llguidance's format. Raises ConstraintError with the JSON pointer of an
    invalid or unsupported part."""
    if schema is True:  # equivalent
        schema = {}
    if schema is False:
        raise ConstraintError(f"{flag}: #: no document matches the schema false")
    if not isinstance(schema, dict):
        raise ConstraintError(f"{flag}: #: a schema is an object, not {printable(json.dumps(schema), 40)}")
    if has_endless_reference(schema):
        raise ConstraintError(f"{flag}: #: a $ref refers to itself")
    rewritten, problem, variant = best_rewriting(schema)
    if not problem:
        return compiled(rewritten), variant
    raise ConstraintError(f"{flag}: {printable(problem_pointer(problem, schema), 200)}: {printable(problem, 300)}")


def rewritings(schema: Schema) -> Iterator[tuple[Schema, Variant]]:
    """Yield schemas that llguidance may be able to compile, the narrowest first."""
    for variant in (Variant.NARROWED, Variant.WIDENED):
        with suppress(RecursionError):
            yield SchemaRewriter(schema, narrows=variant is Variant.NARROWED).rewrite(schema), variant
    yield schema, Variant.ORIGINAL


def rewrite(schema: Schema) -> tuple[Schema, str]:
    """Return a rewriting of a schema that llguidance can compile, and "". If there is none, return the schema and the
    reason, in one line.
    """
    return best_rewriting(schema)[:2]


def best_rewriting(schema: Schema) -> tuple[Schema, str, Variant]:
    """Return what `rewrite` returns, and which variant it is."""
    problem = ""
    for rewritten, variant in rewritings(schema):
        problem = grammar_problem(rewritten)
        if not problem:
            return rewritten, "", variant
        if problem.startswith(UNSATISFIABLE):
            break
    return schema, problem, Variant.ORIGINAL


def problem_pointer(problem: str, schema: Schema) -> str:
    """Return a JSON pointer to the innermost subschema that has this problem by itself."""
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    path = "#"
    for _ in range(MAX_DEPTH):
        failing = (
            (pointer, subschema)
            for pointer, subschema in subschemas(schema)
            if rewrite(definitions | subschema)[1] == problem
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
