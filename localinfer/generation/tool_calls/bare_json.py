"""Calls without delimiters: an answer that begins with the JSON of a call to a known tool.

Llama 3 is prompted to write such calls. Small models forget the delimiters, or put the JSON into a code fence or
between the tags around the list of tools.
"""

import re
from itertools import product
from typing import NamedTuple

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.json_calls import ARGUMENTS, call_from_value, flatten, parse_values, value_end
from localinfer.generation.tool_calls.tool_call import ToolSchemas

OPENINGS = ("", "```json", "```", "<tools>", "<function_call>")
CLOSINGS = ("```", "</tools>", "</function_call>")
PREFIXES = tuple(map("".join, product(OPENINGS, ("{", "[{", "{{"), ('"name":', '"type":"function"', '"function":'))))
SPACE = re.compile(r"\s+")
MAX_PREFIX_CHARACTERS = 200  # including white space


class BareCalls(NamedTuple):
    """Calls at the beginning of a text, and the end of their JSON."""

    calls: list[ToolCall]
    end: int  # character offset


def find_calls(text: str, tools: ToolSchemas) -> BareCalls | None:
    """Return the calls with which a text begins, or None if the text is too short to decide.

    Raises ValueError if the text does not begin with calls.
    """
    if not may_begin(text):
        raise ValueError("the text does not begin with a call")
    start = min((position for bracket in "{[" if (position := text.find(bracket)) >= 0), default=-1)
    end = value_end(text, start) if start >= 0 else None
    if end is None:
        return None
    values = flatten(parse_values(text[start:end]))
    calls = [call_from_value(value) for value in values]
    has_arguments = all(value.keys() & {*ARGUMENTS} for value in values)
    if not calls or not has_arguments or not all(call.name in tools for call in calls):
        raise ValueError("unknown tool, or no arguments")
    return BareCalls(calls, end)


def may_begin(text: str) -> bool:
    """Return whether the text so far may begin a call."""
    compact = SPACE.sub("", text[:MAX_PREFIX_CHARACTERS])
    return any(prefix.startswith(compact) or compact.startswith(prefix) for prefix in PREFIXES)
