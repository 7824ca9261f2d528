"""The check of a finished answer against its whole JSON schema, by the package `jsonschema`."""

import json
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


def answer_problem(text: str, validator: "Validator") -> str:
    """Return how the answer violates the schema, in one line; "" if it does not."""
    from jsonschema.exceptions import best_match

    try:
        error = best_match(validator.iter_errors(json.loads(text)))
    except RecursionError:
        return "nested too deeply"
    except Exception as problem:  # a reference without a target, a pattern that is invalid in Python
        return f"cannot be checked: {' '.join(str(problem).split())[:MAX_PROBLEM_CHARS]}"
    return describe(error) if error else ""


def describe(error: Any) -> str:
    """Return the JSON pointer and the message of an error of jsonschema."""
    if isinstance(error, RecursionError):
        return "#: nested too deeply"
    pointer = "".join(f"/{part}" for part in error.absolute_path)
    return f"#{pointer}: {' '.join(error.message.split())[:MAX_PROBLEM_CHARS]}"
