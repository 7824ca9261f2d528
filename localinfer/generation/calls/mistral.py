"""Mistral's calls, all of them at the end of an answer.

    [TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}, ...]
    [TOOL_CALLS]name[ARGS]{...}[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}     since Mistral Small 3.2
"""

import re

from localinfer.generation.calls.call import Tools, call
from localinfer.generation.calls.json_calls import end_of_value, json_calls
from localinfer.generation.pieces import Call

NAMED = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.:/-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


def mistral_calls(text: str, tools: Tools) -> list[Call]:
    if text.lstrip().startswith(("[{", "{")):
        return json_calls(text, tools)
    found, at = [], 0
    while text[at:].strip():
        name = NAMED.match(text, at)
        end = end_of_value(text, name.end()) if name else None
        if not name or end is None:
            raise ValueError("a name with arguments is not whole")
        found.append(call(name[1], text[name.end() : end], name[2]))
        at = end
    if not found:
        raise ValueError("it is empty")
    return found
