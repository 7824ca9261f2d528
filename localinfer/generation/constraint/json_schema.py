"""JSON schemas: read, and made into grammars. What is not supported is named with its place in the schema."""

import json
from collections.abc import Iterator
from typing import Any

from localinfer.errors import BadForm, UsageError
from localinfer.text import printable

OPTIONS = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}  # llama.cpp's: a model shall not get lost in spaces
DEFINITIONS = ("$defs", "definitions")
TABLES = (*DEFINITIONS, "properties", "patternProperties")  # keywords with schemas under names of the user's
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
DEEPEST = 30  # levels in which a problem is looked for

Schema = dict[str, Any]


def text_of(schema: object) -> str:
    """A schema that Python code gives as a dict, a text, or a pydantic model or type adapter."""
    for name in ("model_json_schema", "json_schema"):  # of a model, and of an adapter
        if callable(getattr(schema, name, None)):
            schema = getattr(schema, name)()
            break
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, dict):
        what = type(schema).__name__
        raise UsageError(f"schema: must be a dict, a text or a pydantic model, not {what}")
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadForm(f"schema: {error}") from None


def parsed(text: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadForm(f"{flag}: not JSON: {printable(str(error), 200)}") from None
    except RecursionError:
        raise BadForm(f"{flag}: nested too deeply") from None


def grammar_of_schema(schema: Any, flag: str) -> str:
    """As llguidance writes it. BadForm names the place of what makes no sense, or what is not supported."""
    if schema is True:  # which says the same
        schema = {}
    if not isinstance(schema, dict):
        raise BadForm(f"{flag}: #: a schema is an object, not {printable(json.dumps(schema), 40)}")
    problem = problem_of(schema)
    if problem:
        raise BadForm(f"{flag}: {printable(place_of(problem, schema), 200)}: {printable(problem, 300)}")
    return compiled(schema)


def compiled(schema: Schema) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=OPTIONS)  # type: ignore[arg-type]


def problem_of(schema: Schema) -> str:
    """What llguidance cannot do with it, in one line; "" for nothing."""
    from llguidance import LLMatcher

    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(compiled(schema))
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return " ".join(messages[0].split()) if failed else ""


def place_of(problem: str, schema: Schema) -> str:
    """A JSON pointer to the innermost part of the schema that has this problem by itself."""
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    path = "#"
    for _ in range(DEEPEST):
        guilty = ((place, part) for place, part in parts(schema) if problem_of(definitions | part) == problem)
        place, schema = next(guilty, ("", {}))
        path += place
    return path


def parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas directly within a schema, and where they are."""
    for keyword in (*TABLES, *LISTS, *SINGLE):
        value = schema.get(keyword)
        if keyword in TABLES and isinstance(value, dict):
            found = [(f"/{keyword}/{name}", part) for name, part in value.items()]
        elif keyword in LISTS and isinstance(value, list):
            found = [(f"/{keyword}/{number}", part) for number, part in enumerate(value)]
        else:
            found = [(f"/{keyword}", value)]
        yield from ((place, part) for place, part in found if isinstance(part, dict))
