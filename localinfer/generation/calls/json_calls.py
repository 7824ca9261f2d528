"""Calls as JSON: {"name": ..., "arguments": {...}}, one, several, or a list of them.

So do Hermes, Qwen, Granite, Nemotron, Apriel, MiniMax M1, Command R7B, Llama 3 and most others; some have other names
for the two.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from localinfer.generation.calls.call import Tools, call, refused
from localinfer.generation.pieces import Call

NAMES = ("name", "tool_name", "function", "function_name")
ARGUMENTS = ("arguments", "parameters", "args", "input")
IDS = ("id", "tool_call_id")
BETWEEN = re.compile(r"[\s,;]*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
TWO_BRACES = re.compile(r'\s*\{\{\s*".*\}\s*\}\s*', re.DOTALL)
DECODER = json.JSONDecoder(strict=False, parse_constant=refused)


def json_calls(text: str, _: Tools) -> list[Call]:
    return [call_of(value) for value in flat(values_of(text))]


def named_json(text: str, _: Tools) -> list[Call]:
    """`name>{...}`: Functionary and Llama 3 write <function=name>{...}</function>."""
    name, sign, arguments = text.partition(">")
    if not sign:
        raise ValueError("it has no arguments")
    return [call(name, arguments)]


def call_of(value: object) -> Call:
    """ValueError for a value that is no call."""
    if not isinstance(value, Mapping):
        raise ValueError("it is no JSON object")
    if isinstance(inner := value.get("function"), Mapping):  # as a message has it
        value = {**value, **inner, "function": inner.get("name")}
    return call(first(value, NAMES), first(value, ARGUMENTS), first(value, IDS))


def first(value: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((value[name] for name in names if name in value), None)


def values_of(text: str) -> list[Any]:
    """JSON values that stand one behind the other; ValueError if there is none, or anything else.

    Some of Qwen's templates show calls with two braces around, and so the model writes them.
    """
    if TWO_BRACES.fullmatch(text):
        text = text.strip()[1:-1]
    values, at = [], skipped(text, 0)
    try:
        while at < len(text):
            value, end = DECODER.raw_decode(text, at)
            values.append(value)
            at = skipped(text, end)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not values:
        raise ValueError("it is empty")
    return values


def skipped(text: str, at: int) -> int:
    found = BETWEEN.match(text, at)
    return found.end() if found else at


def flat(values: list[Any]) -> list[Any]:
    """With what is in lists in their places."""
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def in_string(text: str) -> bool:
    """Does the end of a beginning of JSON lie within a string?"""
    return '"' in STRING.sub("", text)


def end_of_value(text: str, start: int) -> int | None:
    """Behind the object or list that begins at `start`; None if it is still to end. It may be no JSON at all."""
    depth = 0
    for sign in SIGNS.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(sign[0], 0)
        if depth == 0 and sign[0] in "]}":
            return sign.end()
    return None
