"""Construction of tool calls from a model's output, parse results, and the schemas of tools."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from localinfer.generation.pieces import ToolCall

Tool = Mapping[str, object]


class ParseResult(NamedTuple):
    """The newly parsed text, reasoning and calls. `problem` is the reason why a call could not be parsed."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    problem: str = ""

    def joined_with(self, other: "ParseResult") -> "ParseResult":
        return ParseResult(
            self.text + other.text, self.calls + other.calls, self.reasoning + other.reasoning,
            self.problem or other.problem)  # fmt: skip


class ToolSchemas:
    """JSON schemas of the functions that the model may call, in OpenAI's format or without its outer object."""

    def __init__(self, schemas: Sequence[Tool] = ()) -> None:
        functions = [schema.get("function", schema) for schema in schemas]
        named = [each for each in functions if isinstance(each, Mapping) and isinstance(each.get("name"), str)]
        self._parameters = {str(each["name"]): each.get("parameters") for each in named}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def parse_argument(self, function: str, parameter: str, text: str) -> Any:
        """Convert an argument of a format without quotes around strings. The schema determines the type."""
        kinds = self._argument_types(function, parameter)
        if "string" in kinds and not ("null" in kinds and text == "null"):
            return text
        try:
            return parse_json(text)
        except ValueError:
            return text

    def _argument_types(self, function: str, parameter: str) -> Sequence[str]:
        match self._parameters.get(function):
            case {"properties": {**properties}} if isinstance(schema := properties.get(parameter), Mapping):
                kinds = schema.get("type", ())
                return [kinds] if isinstance(kinds, str) else list(kinds)
        return ()


CallReader = Callable[
    [str, ToolSchemas], list[ToolCall]
]  # parses the text between delimiters; raises ValueError if it is not a call


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
