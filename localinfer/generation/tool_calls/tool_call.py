"""Construction of tool calls from a model's output, parse results, and the schemas of tools."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from localinfer.generation.pieces import ToolCall, ToolCallPart

Tool = Mapping[str, object]
JSON_TYPES = {
    bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, type(None): {"null"},
    list: {"array"}, dict: {"object"},
}  # fmt: skip


class ParseResult(NamedTuple):
    """The newly parsed text, reasoning, calls and parts of arguments. `problem` is the reason why a call could not be
    parsed.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    problem: str = ""
    parts: tuple[ToolCallPart, ...] = ()

    def joined_with(self, other: "ParseResult") -> "ParseResult":
        return ParseResult(
            self.text + other.text, self.calls + other.calls, self.reasoning + other.reasoning,
            self.problem or other.problem, self.parts + other.parts)  # fmt: skip


class ToolSchemas:
    """JSON schemas of the functions that the model may call, in OpenAI's format or without its outer object."""

    def __init__(self, schemas: Sequence[Tool] = ()) -> None:
        functions = [function_of(schema) for schema in schemas]
        named = [each for each in functions if isinstance(each.get("name"), str)]
        self._parameters = {str(each["name"]): each.get("parameters") for each in named}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def argument_schema(self, function: str, parameter: str) -> object:
        """Return the JSON schema of a parameter, or None if there is none."""
        return property_schema(self._parameters.get(function), parameter)

    def parse_argument(self, function: str, parameter: str, text: str) -> Any:
        """Convert an argument of a format without quotes around strings. The schema determines the type."""
        return parse_unquoted(text, self.argument_schema(function, parameter))


CallReader = Callable[
    [str, ToolSchemas], list[ToolCall]
]  # parses the text between delimiters; raises ValueError if it is not a call


def function_of(tool: Tool) -> Mapping[str, Any]:
    """Return the function of a tool, which OpenAI nests; {} if there is none."""
    function = tool.get("function", tool)
    return function if isinstance(function, Mapping) else {}


def closed_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments of a function, without further properties if it names any.

    A required property that is not among them may have any value.
    """
    parameters = function.get("parameters")
    parameters = parameters if parameters and isinstance(parameters, Mapping) else {"properties": {}}
    schema: dict[str, Any] = {"type": "object", **parameters}
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and all(name in [*properties] for name in as_list(schema.get("required"))):
        schema.setdefault("additionalProperties", False)
    return schema


def property_schema(schema: object, name: str) -> object:
    """Return the schema of a property of an object."""
    for each in alternatives(schema):
        match each.get("properties"):
            case {**properties} if name in properties:
                return properties[name]
    return None


def item_schema(schema: object) -> object:
    """Return the schema of the elements of a list."""
    return next((each["items"] for each in alternatives(schema) if "items" in each), None)


def schema_types(schema: object) -> set[str]:
    """Return the types that a JSON schema names; its constants have types, too."""
    types: set[str] = set()
    for each in alternatives(schema):
        named = each.get("type")
        types |= {name for name in as_list(named) or [named] if isinstance(name, str)}
        constants = [*as_list(each.get("enum")), *([each["const"]] if "const" in each else ())]
        types |= {name for constant in constants for name in JSON_TYPES.get(type(constant), {"string"})}
    return types


def alternatives(schema: object) -> Iterator[Mapping[str, Any]]:
    """Yield a schema, and those among which it lets a value choose."""
    if isinstance(schema, Mapping):
        yield schema
        for keyword in ("anyOf", "oneOf", "allOf"):
            for each in as_list(schema.get(keyword)):
                yield from alternatives(each)


def as_list(value: object) -> Sequence[Any]:
    """Return a list as it is, and an empty one for anything else: tools may have schemas that are invalid."""
    return value if isinstance(value, list | tuple) else ()


def parse_unquoted(text: str, schema: object) -> Any:
    """Convert a value that was written without quotes.

    If its schema allows strings, it is a string, unless it is a value of another type that the schema names.
    """
    types = schema_types(schema)
    if types == {"string"}:
        return text
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value if "string" not in types or types & JSON_TYPES.get(type(value), set()) else text


def parse_json(text: str) -> Any:
    """Return the value of JSON text. Raises ValueError for anything else, including NaN and Infinity."""
    try:
        return json.loads(
            text, strict=False, parse_constant=reject_constant
        )  # models write line breaks in strings without escapes
    except RecursionError:
        raise ValueError("nested too deeply") from None


def reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def make_tool_call(name: object, arguments: object, id: object = "") -> ToolCall:
    """Return a call. Raises ValueError if the name or the arguments are missing or invalid.

    Arguments may be an object, its JSON text, or None for no arguments.
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError("no tool name")
    if isinstance(arguments, str):
        arguments = parse_json(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return ToolCall(name.strip(), arguments, id if isinstance(id, str) else "")
