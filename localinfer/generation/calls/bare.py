"""Calls without marks: an answer that begins with the JSON of a call is one, if there is such a tool.

Llama 3 is asked to write so; small models forget the marks, or put the JSON into a fence or between the tags that stand
around the list of tools.
"""

import re
from itertools import product
from typing import NamedTuple

from localinfer.generation.calls.call import Tools
from localinfer.generation.calls.json_calls import ARGUMENTS, call_of, end_of_value, flat, values_of
from localinfer.generation.pieces import Call

OPENINGS = ("", "```json", "```", "<tools>", "<function_call>")
CLOSINGS = ("```", "</tools>", "</function_call>")
BEGINNINGS = tuple(map("".join, product(OPENINGS, ("{", "[{", "{{"), ('"name":', '"type":"function"', '"function":'))))
SPACE = re.compile(r"\s+")
LONGEST_BEGINNING = 200  # characters, with much space in it


class Found(NamedTuple):
    calls: list[Call]
    end: int  # of the JSON in the text


def find(text: str, tools: Tools) -> Found | None:
    """The calls that a text begins with; None while it could still become some. ValueError if there are none."""
    if not may_begin(text):
        raise ValueError("it does not begin as a call")
    start = min((at for sign in "{[" if (at := text.find(sign)) >= 0), default=-1)
    end = end_of_value(text, start) if start >= 0 else None
    if end is None:
        return None
    values = flat(values_of(text[start:end]))
    calls = [call_of(value) for value in values]
    has_arguments = all(value.keys() & {*ARGUMENTS} for value in values)
    if not calls or not has_arguments or not all(call.name in tools for call in calls):
        raise ValueError("there is no such tool, or no arguments")
    return Found(calls, end)


def may_begin(text: str) -> bool:
    """Does this begin as a call does, as far as it has come?"""
    tight = SPACE.sub("", text[:LONGEST_BEGINNING])
    return any(each.startswith(tight) or tight.startswith(each) for each in BEGINNINGS)
