"""Rewriting of JSON schemas as schemas that llguidance can compile.

A grammar cannot express every keyword. The result allows each document that the schema allows, and possibly more; the
finished answer is checked against the schema itself. One keyword is narrowed: unique items of an `enum` of six values
or more keep the order of the `enum`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, combinations, permutations
from typing import Any

from .schema_compiler import grammar_problem
from .schema_references import resolve

Schema = dict[str, Any]
Subschema = Schema | bool

DEFINITIONS = ("$defs", "definitions")
TABLES = (*DEFINITIONS, "properties", "patternProperties")  # keywords whose values map names to schemas
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalItems", "additionalProperties")
TYPES = ("null", "boolean", "number", "string", "array", "object")
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "example", "$comment", "deprecated"})
UNSUPPORTED = ("not", "uniqueItems", "dependencies", "dependentRequired", "dependentSchemas", "if", "then", "else")
INTEGERS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
MAX_UNIQUE_ARRAYS = 330  # arrays of unique values that are listed one by one: all orders of five values
MAX_EXCLUDED_CHARS = 2000  # characters of all strings that a pattern excludes


class SchemaRewriter:
    """Rewrites one schema. Without `narrows`, keywords that a grammar cannot express are only dropped."""

    def __init__(self, root: Schema, *, narrows: bool) -> None:
        self._root, self._narrows = root, narrows

    def rewrite(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        result = {key: self._rewrite_value(key, value) for key, value in schema.items()}
        conditions = list(self._conditions(schema, result)) if self._narrows else []
        for key in UNSUPPORTED:
            result.pop(key, None)
        drop_unsupported_patterns(result)
        convert_exclusive_limits(result)
        convert_integral_floats(result)
        if not self._narrows:
            for key in ("minProperties", "maxProperties"):
                result.pop(key, None)
        if conditions:
            result["allOf"] = [*as_list(result.get("allOf")), *conditions]
        return result

    def _rewrite_value(self, key: str, value: Any) -> Any:
        if key in TABLES and isinstance(value, dict):
            return {name: self.rewrite(each) for name, each in value.items()}
        if (key in LISTS or key == "items") and isinstance(value, list):
            return [self.rewrite(each) for each in value]
        return self.rewrite(value) if key in SINGLE else value

    def _conditions(self, schema: Schema, result: Schema) -> Iterator[Subschema]:
        """Yield schemas that express keywords which llguidance does not implement. May simplify `result`."""
        if "not" in schema:
            yield self.negation(schema["not"])
        if schema.get("uniqueItems") is True and (arrays := self.unique_arrays(schema)) is not None:
            for key in ("items", "prefixItems", "minItems", "maxItems"):
                result.pop(key, None)
            yield {"anyOf": [{"type": [each for each in TYPES if each != "array"]}, *arrays]}
        if "if" in schema:
            yield either({"allOf": [self.rewrite(schema["if"]), self.rewrite(schema.get("then", True))]},
                         self._both(self.negation(schema["if"]), schema.get("else", True)))  # fmt: skip
        dependencies = chain.from_iterable(
            as_dict(schema.get(key)).items() for key in ("dependencies", "dependentRequired", "dependentSchemas"))
        for name, needed in dependencies:
            condition = {"required": needed} if isinstance(needed, list) else self.rewrite(needed)
            yield either(self.negation({"required": [name]}, only_objects=False), condition)

    def _both(self, first: Subschema, second: Any) -> Subschema:
        return {"allOf": [first, self.rewrite(second)]}

    # --- negation ---

    def negation(self, schema: Any, *, only_objects: bool = True) -> Subschema:
        """Return a schema of the documents that do not match `schema`, or of more documents.

        Without `only_objects`, the negation of `required` also allows what is no object.
        """
        if not isinstance(schema, dict):
            return not schema
        options: list[Subschema] = []
        for key, value in schema.items():
            if key not in ANNOTATIONS:
                options.append(self._keyword_negation(key, value, only_objects=only_objects))
        if True in options:
            return True
        return {"anyOf": options} if options else False

    def _keyword_negation(self, key: str, value: Any, *, only_objects: bool) -> Subschema:
        match key, value:
            case "type", _:
                return {"type": other_types(value)}
            case "const", _:
                return other_values([value])
            case "enum", list():
                return other_values(value)
            case "required", list():
                objects: list[Subschema] = [{"type": "object", "properties": {name: False}} for name in value]
                others = [{"type": [each for each in TYPES if each != "object"]}] if not only_objects else []
                return {"anyOf": [*others, *objects]}
            case "properties", dict():
                options = [(name, self.negation(each)) for name, each in value.items()]
                return {"anyOf": [{"type": "object", "properties": {name: each}, "required": [name]}
                                  for name, each in options]}  # fmt: skip
            case "anyOf", list():
                return {"allOf": [self.negation(each) for each in value]}
            case "allOf", list():
                options_of_all = [self.negation(each) for each in value]
                return True if True in options_of_all else {"anyOf": options_of_all}
            case "not", _:
                return self.rewrite(value)  # type: ignore[no-any-return]
        return True

    # --- unique items ---

    def unique_arrays(self, schema: Schema) -> list[Schema] | None:
        """Return schemas of all arrays of unique items, or None if the items have many values."""
        items = self.resolve(schema.get("items"))
        values = items.get("enum", [items["const"]] if "const" in items else None)
        if values is None and items.get("type") == "boolean":
            values = [False, True]
        if not isinstance(values, list) or "prefixItems" in schema or len(values) > MAX_UNIQUE_ARRAYS:
            return None
        max_items = min(as_int(schema.get("maxItems"), len(values)), len(values))
        sizes = range(as_int(schema.get("minItems"), 0), max_items + 1)
        for choose in (permutations, combinations):
            arrays: list[Schema] = []
            for array in chain.from_iterable(choose(values, size) for size in sizes):
                arrays.append(array_of(array))
                if len(arrays) > MAX_UNIQUE_ARRAYS:
                    break
            else:
                return arrays
        return None

    def resolve(self, schema: Any) -> Schema:
        """Follow references within the schema."""
        for _ in range(10):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = resolve(self._root, schema["$ref"])
        return schema if isinstance(schema, dict) else {}


def either(first: Subschema, second: Subschema) -> Subschema:
    return True if True in (first, second) else {"anyOf": [first, second]}


def array_of(values: tuple[Any, ...]) -> Schema:
    """Return a schema of the array of just these values."""
    size = {"minItems": len(values), "maxItems": len(values)}
    return {"type": "array", "items": False, "prefixItems": [{"const": value} for value in values], **size}


def other_types(types: Any) -> list[str]:
    """Return the types that are not among these. A number that is not an integer counts as one that is."""
    excluded = set(as_list(types) if isinstance(types, list) else [types])
    return [each for each in TYPES if each not in excluded]


def other_values(values: list[Any]) -> Subschema:
    """Return a schema of what is none of these values; it may allow the numbers, arrays and objects among them."""
    strings = {value for value in values if isinstance(value, str)}
    booleans = [value for value in (False, True) if not any(value is each for each in values)]
    types = [each for each in TYPES if each not in ("null", "boolean", "string")]
    if not any(value is None for value in values):
        types.append("null")
    text: Schema = {"type": "string"}
    if strings and sum(map(len, strings)) <= MAX_EXCLUDED_CHARS:
        text["pattern"] = f"^{other_texts(strings)}$"
    return {"anyOf": [{"type": types}, text, *([{"enum": booleans}] if booleans else [])]}


def other_texts(words: set[str]) -> str:
    """Return a regular expression that matches every text but these words."""
    first = sorted({word[0] for word in words if word})
    options = [] if "" in words else [""]
    options.append(f"[^{''.join(map(escape_in_set, first))}](?s:.)*" if first else "(?s:.)+")
    options += [re.escape(char) + other_texts({word[1:] for word in words if word.startswith(char)}) for char in first]
    return f"(?:{'|'.join(options)})"


def escape_in_set(char: str) -> str:
    return "\\" + char if char in r"\]^-[&~" else char


def drop_unsupported_patterns(schema: Schema) -> None:
    """Drop patterns that llguidance cannot compile, and conditions on the names of properties that depend on them."""
    if isinstance(pattern := schema.get("pattern"), str) and not is_supported_pattern(pattern):
        del schema["pattern"]
    patterns = as_dict(schema.get("patternProperties"))
    if not all(map(is_supported_pattern, patterns)) or not are_disjoint(tuple(patterns)):
        del schema["patternProperties"]
        schema.pop("additionalProperties", None)


@lru_cache(1000)
def is_supported_pattern(pattern: str) -> bool:
    """Return whether llguidance compiles a pattern, or whether nothing does: then it is an error."""
    if is_compiled({"type": "string", "pattern": pattern}):
        return True
    try:
        re.compile(pattern)
    except re.error:
        return True
    return False


@lru_cache(1000)
def are_disjoint(patterns: tuple[str, ...]) -> bool:
    properties: Schema = {pattern: {} for pattern in patterns}
    return len(patterns) < 2 or is_compiled({"type": "object", "patternProperties": properties})


def is_compiled(schema: Schema) -> bool:
    return not grammar_problem(schema)


def convert_exclusive_limits(schema: Schema) -> None:
    """Convert draft 4's `exclusiveMinimum: true` to the number of later drafts."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            limit = schema.get(inclusive)
            if schema.pop(exclusive) and limit is not None:
                schema[exclusive] = schema.pop(inclusive)


def convert_integral_floats(schema: Schema) -> None:
    """Convert limits such as 3.0, which JSON schema counts as integers, to integers."""
    for key in INTEGERS:
        value = schema.get(key)
        if isinstance(value, float) and value.is_integer():
            schema[key] = int(value)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_int(value: Any, default: int) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
