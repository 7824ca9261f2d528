"""Calls with delimiters around the name and around its arguments in JSON.

DeepSeek V3, R1   <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\\n```json\\n{...}\\n```<｜tool▁call▁end｜>
DeepSeek V3.1     <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
Kimi K2           <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
Solar Open        <|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{...}<|tool_call:end|>
PLaMo 3           <|plamo:begin_tool_request:plamo|> ... <|plamo:end_tool_request:plamo|>, in which such tags, with
                  tool_name and tool_arguments, are around the name and {...}
"""

import re

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import CallReader, ToolSchemas, make_tool_call
from localinfer.generation.tool_calls.xml_calls import match_all, require_matches

DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
FENCED = re.compile(r"\s*(\S+)\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
KIMI = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|(?=<\|tool_call_begin\|>)|\Z)",
    re.DOTALL,
)
SOLAR = re.compile(
    r"<\|tool_call:begin\|>(?P<id>.*?)<\|tool_call:name\|>(?P<name>.*?)<\|tool_call:args\|>(?P<arguments>.*?)"
    r"<\|tool_call:end\|>",
    re.DOTALL,
)
PLAMO = re.compile(
    r"<\|plamo:begin_tool_request:plamo\|>\s*"
    r"<\|plamo:begin_tool_name:plamo\|>(?P<name>.*?)<\|plamo:end_tool_name:plamo\|>\s*"
    r"<\|plamo:begin_tool_arguments:plamo\|>(?:<\|plamo:constrain\|>json<\|plamo:msg\|>)?(?P<arguments>.*?)"
    r"<\|plamo:end_tool_arguments:plamo\|>\s*<\|plamo:end_tool_request:plamo\|>",
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


def matched_calls(pattern: re.Pattern[str]) -> CallReader:
    """Return a function that parses calls with the groups `name` and `arguments`, and maybe `id`."""

    def read(text: str, _: ToolSchemas) -> list[ToolCall]:
        found = [match.groupdict() for match in require_matches(match_all(pattern, text))]
        return [make_tool_call(each["name"], each["arguments"], each.get("id", "")) for each in found]

    return read


solar_calls = matched_calls(SOLAR)
plamo_calls = matched_calls(PLAMO)
