"""Calls in JSON: {"name": ..., "arguments": {...}}, one, several, or a list.

Hermes, Qwen, Granite, Nemotron, Apriel, MiniMax M1, Command R7B, Llama 3 and most others use them, some with other key
names.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import ToolSchemas, make_tool_call, reject_constant

NAMES = ("name", "tool_name", "function", "function_name")
ARGUMENTS = ("arguments", "parameters", "args", "input")
IDS = ("id", "tool_call_id")
SEPARATORS = re.compile(r"[\s,;]*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
DOUBLE_BRACES = re.compile(r'\s*\{\{\s*".*\}\s*\}\s*', re.DOTALL)
DECODER = json.JSONDecoder(strict=False, parse_constant=reject_constant)


def json_calls(text: str, _: ToolSchemas) -> list[ToolCall]:
    return [call_from_value(value) for value in flatten(parse_values(text))]


def keyed_calls(text: str, _: ToolSchemas) -> list[ToolCall]:
    """Parse [{"name": {...arguments...}}, ...], which Apertus writes."""
    values = flatten(parse_values(text))
    if not all(isinstance(each, dict) for each in values):
        raise ValueError("not a JSON object")
    return [make_tool_call(name, arguments) for each in values for name, arguments in each.items()]


def json_list(text: str, tools: ToolSchemas) -> list[ToolCall]:
    """Parse a list whose opening bracket is part of the opening delimiter."""
    return json_calls(f"[{text}", tools)


def json_arguments(name: str, arguments: str, _: ToolSchemas) -> list[ToolCall]:
    """Return the call of a tool that the text around the arguments names."""
    return [make_tool_call(name, arguments)]


def named_json(text: str, _: ToolSchemas) -> list[ToolCall]:
    """Parse `name>{...}`: Functionary and Llama 3 write <function=name>{...}</function>."""
    name, separator, arguments = text.partition(">")
    if not separator:
        raise ValueError("no arguments")
    return [make_tool_call(name, arguments)]


def call_from_value(value: object) -> ToolCall:
    """Return the call in a JSON value. Raises ValueError if it is not a call."""
    if not isinstance(value, Mapping):
        raise ValueError("not a JSON object")
    if isinstance(function := value.get("function"), Mapping):  # as in a message
        value = {**value, **function, "function": function.get("name")}
    return make_tool_call(first_present(value, NAMES), first_present(value, ARGUMENTS), first_present(value, IDS))


def first_present(value: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((value[name] for name in names if name in value), None)


def parse_values(text: str) -> list[Any]:
    """Return consecutive JSON values. Raises ValueError if there are none, or anything else.

    Some of Qwen's chat templates show calls with double braces, so the model writes these.
    """
    if DOUBLE_BRACES.fullmatch(text):
        text = text.strip()[1:-1]
    values, position = [], skip_separators(text, 0)
    try:
        while position < len(text):
            value, end = DECODER.raw_decode(text, position)
            values.append(value)
            position = skip_separators(text, end)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not values:
        raise ValueError("empty")
    return values


def skip_separators(text: str, position: int) -> int:
    match = SEPARATORS.match(text, position)
    return match.end() if match else position


def flatten(values: list[Any]) -> list[Any]:
    """Return the values with lists replaced by their elements."""
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def ends_in_string(text: str) -> bool:
    """Return whether the text, a prefix of JSON, ends within a string."""
    return '"' in STRING.sub("", text)


def value_end(text: str, start: int) -> int | None:
    """Return the end of the object or list that begins at `start`, or None if it is incomplete. It need not be valid
    JSON."""
    depth = 0
    for match in STRING_OR_BRACKET.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth == 0 and match[0] in "]}":
            return match.end()
    return None
