"""Calls with delimiters around the name and around its arguments in JSON.

DeepSeek V3, R1   <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\\n```json\\n{...}\\n```<｜tool▁call▁end｜>
DeepSeek V3.1     <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
Kimi K2           <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
"""

import re

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import ToolSchemas, make_tool_call
from localinfer.generation.tool_calls.xml_calls import match_all, require_matches

DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
FENCED = re.compile(r"\s*(\S+)\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
KIMI = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|(?=<\|tool_call_begin\|>)|\Z)",
    re.DOTALL,
)


def deepseek_calls(text: str, _: ToolSchemas) -> list[ToolCall]:
    calls = []
    for match in require_matches(match_all(DEEPSEEK, text)):
        fenced = FENCED.fullmatch(match[2])
        calls.append(make_tool_call(fenced[1], fenced[2]) if fenced else make_tool_call(match[1], match[2]))
    return calls


def kimi_calls(text: str, _: ToolSchemas) -> list[ToolCall]:
    """Parse Kimi K2's calls. The whole header is the call's id, which refers to the call in the tool's result."""
    return [
        make_tool_call(match[1].strip().removeprefix("functions.").rpartition(":")[0], match[2], match[1].strip())
        for match in require_matches(match_all(KIMI, text))
    ]


def bare_kimi_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    """Parse calls without the delimiters of the section. Those at the end of a call may be missing, too."""
    return kimi_calls("<|tool_call_begin|>" + text.rstrip(), tools)
