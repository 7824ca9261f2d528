"""Gemma 4's calls: call:name{key:<|"|>text<|"|>,other:[1,{inner:true}]}, JSON but for the quotes."""

import json
import re

from localinfer.generation.calls.call import Tools, call
from localinfer.generation.pieces import Call

CALL = re.compile(r"\s*call:([\w.:/-]+)\s*(\{.*\})\s*", re.DOTALL)
QUOTE = '<|"|>'
KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)(\s*:)")


def gemma_calls(text: str, _: Tools) -> list[Call]:
    found = CALL.fullmatch(text)
    if not found:
        raise ValueError("it names no tool")
    outside_and_inside = found[2].split(QUOTE)
    parts = [json.dumps(part) if at % 2 else KEY.sub(r'\1"\2"\3', part) for at, part in enumerate(outside_and_inside)]
    return [call(found[1], "".join(parts))]
