"""References within a JSON schema."""

from collections.abc import Iterator
from typing import Any

LISTS = ("allOf", "anyOf", "oneOf")
SINGLE = ("not", "if", "then", "else")


def resolve(root: Any, reference: object) -> Any:
    """Return the target of a reference such as #/$defs/name; None if there is none in this document."""
    target = root
    for part in str(reference).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target if str(reference).startswith("#") else None


def has_endless_reference(root: Any) -> bool:
    """Return whether a subschema refers to itself without going into a part of the document, such as {"$ref": "#"}."""
    state: dict[int, bool] = {}  # the id of a subschema -> whether all that it refers to has been visited
    for schema in all_dicts(root):
        pending = [(schema, False)]
        while pending:
            each, is_done = pending.pop()
            if is_done:
                state[id(each)] = True
            elif state.get(id(each)) is False:
                return True
            elif id(each) not in state:
                state[id(each)] = False
                pending.append((each, True))
                pending += [(next, False) for next in same_place(root, each) if not state.get(id(next))]
    return False


def same_place(root: Any, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the subschemas that apply to the same part of a document as `schema`."""
    candidates = [resolve(root, schema["$ref"])] if "$ref" in schema else []
    for key in LISTS:
        candidates += schema[key] if isinstance(schema.get(key), list) else []
    candidates += [schema.get(key) for key in SINGLE]
    yield from (each for each in candidates if isinstance(each, dict))


def all_dicts(root: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a JSON value."""
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value
