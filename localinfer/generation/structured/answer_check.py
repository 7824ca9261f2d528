"""The check of a finished answer against its whole JSON schema, by the package `jsonschema`."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_PROBLEM_CHARS = 300


def validator_of(schema: Any) -> "Validator":
    """Return the validator of a schema. Raises ValueError if the schema is invalid.

    A schema that names no draft may be of any. References to other documents are never fetched.
    """
    import jsonschema
    from referencing import Registry

    newest: Any = jsonschema.Draft202012Validator
    drafts: list[Any] = [newest, jsonschema.Draft7Validator, jsonschema.Draft4Validator]
    if isinstance(schema, dict) and "$schema" in schema:
        drafts = [jsonschema.validators.validator_for(schema, default=newest)]
    problem = ""
    for draft in drafts:
        try:
            draft.check_schema(schema)
            validator: Validator = draft(schema, registry=Registry())
            return validator
        except (jsonschema.SchemaError, RecursionError) as error:
            problem = problem or describe(error)
    raise ValueError(problem)


def answer_problem(text: str, validator: "Validator") -> tuple[str, int]:
    """Return how the answer violates the schema, in one line, and where in the text the value begins that does; "" and
    0 if it does not.
    """
    from jsonschema.exceptions import best_match

    try:
        error = best_match(validator.iter_errors(json.loads(text)))
    except RecursionError:
        return "nested too deeply", 0
    except Exception as problem:  # a reference without a target, a pattern that is invalid in Python
        return f"cannot be checked: {' '.join(str(problem).split())[:MAX_PROBLEM_CHARS]}", 0
    if not error:
        return "", 0
    return f"{describe(error)} (schema: {pointer(error.absolute_schema_path)})", value_offset(text, error.absolute_path)


def describe(error: Any) -> str:
    """Return the JSON pointer and the message of an error of jsonschema."""
    if isinstance(error, RecursionError):
        return "#: nested too deeply"
    return f"{pointer(error.absolute_path)}: {' '.join(error.message.split())[:MAX_PROBLEM_CHARS]}"


def pointer(path: Iterable[str | int]) -> str:
    return "#" + "".join(f"/{part}" for part in path)


def value_offset(text: str, path: Iterable[str | int]) -> int:
    """Return where a value begins in a JSON text. `path` are the names and the indices that lead to it."""
    position = after_spaces(text, 0)
    for part in path:
        position = member_offset(text, position, part)
    return position


def member_offset(text: str, start: int, part: str | int) -> int:
    """Return where a value of the object or the array at `start` begins, the last one if a name is repeated."""
    decode = json.JSONDecoder().raw_decode
    position, index, found = after_spaces(text, start + 1), 0, start
    while text[position] not in "]}":
        name: str | int = index
        if text[start] == "{":
            name, position = decode(text, position)
            position = after_spaces(text, after_spaces(text, position) + len(":"))
        if name == part:
            found = position
        _, position = decode(text, position)
        position, index = after_spaces(text, position), index + 1
        if text[position] == ",":
            position = after_spaces(text, position + 1)
    return found


def after_spaces(text: str, position: int) -> int:
    while text[position] in " \t\n\r":
        position += 1
    return position
