"""Gemma 4's calls: call:name{key:<|"|>text<|"|>,other:[1,{inner:true}]}, which is JSON with other quotes."""

import json
import re

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import ToolSchemas, make_tool_call

CALL = re.compile(r"\s*call:([\w.:/-]+)\s*(\{.*\})\s*", re.DOTALL)
QUOTE = '<|"|>'
KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)(\s*:)")


def gemma_calls(text: str, _: ToolSchemas) -> list[ToolCall]:
    match = CALL.fullmatch(text)
    if not match:
        raise ValueError("no tool name")
    segments = match[2].split(QUOTE)
    converted = [
        json.dumps(segment) if index % 2 else KEY.sub(r'\1"\2"\3', segment) for index, segment in enumerate(segments)
    ]
    return [make_tool_call(match[1], "".join(converted))]
