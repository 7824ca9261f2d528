"""Gemma 4's calls: call:name{key:<|"|>text<|"|>,other:[1,{inner:true}]}, which is JSON with other quotes.

Those of FunctionGemma are <escape>.
"""

import json
import re

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import CallReader, ToolSchemas, make_tool_call

CALL = re.compile(r"\s*call:([\w.:/-]+)\s*(\{.*\})\s*", re.DOTALL)
KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)(\s*:)")


def quoted_calls(quote: str) -> CallReader:
    """Return a function that parses calls with these quotes."""

    def read(text: str, _: ToolSchemas) -> list[ToolCall]:
        match = CALL.fullmatch(text)
        if not match:
            raise ValueError("no tool name")
        segments = match[2].split(quote)
        converted = [
            json.dumps(segment) if index % 2 else KEY.sub(r'\1"\2"\3', segment)
            for index, segment in enumerate(segments)
        ]
        return [make_tool_call(match[1], "".join(converted))]

    return read


gemma_calls = quoted_calls('<|"|>')
function_gemma_calls = quoted_calls("<escape>")
