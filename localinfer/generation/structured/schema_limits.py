"""The keywords of a JSON schema that no mask enforces: only the check of the finished answer does."""

from collections.abc import Iterator
from time import process_time
from typing import Any

from .json_schema import Variant
from .schema_compiler import is_one_of_supported
from .schema_rewriting import (
    ANNOTATIONS,
    LISTS,
    MAX_EXCLUDED_CHARS,
    SINGLE,
    TABLES,
    UNSUPPORTED,
    Schema,
    SchemaRewriter,
    are_disjoint,
    as_dict,
    as_list,
    is_supported_pattern,
)

NEVER_MASKED = (
    "contains", "minContains", "maxContains", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
ONLY_NARROWED = (*UNSUPPORTED, "minProperties", "maxProperties")
MAX_SECONDS = 1.0  # of CPU time for the search; then the rest of a very large schema is not searched
MAX_ONE_OFS = 50  # of which overlaps are searched; others count as overlapping


def unmasked_keywords(schema: Any, variant: Variant) -> list[str]:
    """Return JSON pointers to the keywords that the grammar, made of this variant of the schema, does not express."""
    return list(LimitFinder(schema, variant).find())


class LimitFinder:
    """Searches one schema."""

    def __init__(self, root: Any, variant: Variant) -> None:
        self._root, self._variant = root, variant
        self._rewriter = SchemaRewriter(root, narrows=True)
        self._n_one_ofs = 0

    def find(self) -> Iterator[str]:
        pending: list[tuple[str, Any]] = [("#", self._root)]
        end = process_time() + MAX_SECONDS
        while pending and process_time() < end:
            pointer, schema = pending.pop()
            if isinstance(schema, dict):
                yield from (f"{pointer}/{key}" for key in self._unmasked(schema))
                pending += reversed([(f"{pointer}/{key}", each) for key, each in subschemas(schema)])

    def _unmasked(self, schema: Schema) -> Iterator[str]:
        for key, value in schema.items():
            if not self._is_masked(key, value, schema):
                yield key

    def _is_masked(self, key: str, value: Any, schema: Schema) -> bool:
        if key in NEVER_MASKED:
            return False
        if key in ONLY_NARROWED and self._variant is not Variant.NARROWED:
            return key == "uniqueItems" and value is not True
        match key:
            case "pattern":
                return is_supported_pattern(str(value))
            case "patternProperties":
                patterns = tuple(as_dict(value))
                return all(map(is_supported_pattern, patterns)) and are_disjoint(patterns)
            case "not" | "if":
                return is_exact_negation(value)
            case "uniqueItems":
                return value is not True or self._rewriter.unique_arrays(schema) is not None
            case "oneOf":
                self._n_one_ofs += 1
                return self._n_one_ofs <= MAX_ONE_OFS and is_one_of_supported(
                    [self._rewriter.resolve(each) for each in as_list(value)], as_dict(self._root))
        return True


def subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas whose keywords become masks, with their JSON pointers."""
    for key, value in schema.items():
        if key in (*TABLES, "dependentSchemas") and isinstance(value, dict):
            yield from ((f"{key}/{name}", each) for name, each in value.items())
        elif key in (*LISTS, "items") and isinstance(value, list):
            yield from ((f"{key}/{number}", each) for number, each in enumerate(value))
        elif key in (*SINGLE, "then", "else"):
            yield key, value


def is_exact_negation(schema: Any) -> bool:
    """Return whether `SchemaRewriter.negation` allows no document that matches the schema."""
    if not isinstance(schema, dict):
        return True
    return all(is_exact_keyword(key, value) for key, value in schema.items() if key not in ANNOTATIONS)


def is_exact_keyword(key: str, value: Any) -> bool:
    match key, value:
        case "type", _:
            types = value if isinstance(value, list) else [value]
            return "integer" not in types or "number" in types
        case "const", _:
            return are_simple([value])
        case "enum", list():
            return are_simple(value)
        case "properties", dict():
            return all(map(is_exact_negation, value.values()))
        case ("anyOf" | "allOf"), list():
            return all(map(is_exact_negation, value))
    return key in ("required", "not")


def are_simple(values: list[Any]) -> bool:
    """Return whether a pattern and types can exclude just these values."""
    n_chars = sum(len(value) for value in values if isinstance(value, str))
    return n_chars <= MAX_EXCLUDED_CHARS and all(isinstance(value, str | bool | None) for value in values)
