"""Mistral's calls, all at the end of an answer.

[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}, ...]
[TOOL_CALLS]name[ARGS]{...}[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}     since Mistral Small 3.2
"""

import re

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.json_calls import json_calls, value_end
from localinfer.generation.tool_calls.tool_call import ToolSchemas, make_tool_call

NAMED = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.:/-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


def mistral_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    if text.lstrip().startswith(("[{", "{")):
        return json_calls(text, tools)
    calls, position = [], 0
    while text[position:].strip():
        match = NAMED.match(text, position)
        end = value_end(text, match.end()) if match else None
        if not match or end is None:
            raise ValueError("incomplete name or arguments")
        calls.append(make_tool_call(match[1], text[match.end() : end], match[2]))
        position = end
    if not calls:
        raise ValueError("empty")
    return calls
