"""Calls with XML-like tags. Arguments are plain text, and the tool's schema determines their types.

function_calls   <function=name><parameter=key>value</parameter></function>     Qwen3-Coder, Seed OSS, Nemotron 3
arg_key_calls    name<arg_key>key</arg_key><arg_value>value</arg_value>          GLM 4.5 and later
invoke_calls     <invoke name="name"><parameter name="key">value</parameter></invoke>  MiniMax M2, DeepSeek V3.2
"""

import re

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import ToolSchemas, parse_json

FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
INVOKE = re.compile(r'<(｜DSML｜|)invoke name="([^">\n]+)">(.*?)</\1invoke>', re.DOTALL)
NAMED = re.compile(r'<(｜DSML｜|)parameter name="([^">\n]+)"(?: string="(true|false)")?>(.*?)</\1parameter>', re.DOTALL)


def function_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    return [
        ToolCall(name := function[1].strip(), {
            (key := each[1].strip()): tools.parse_argument(name, key, each[2])
            for each in match_all(PARAMETER, function[2])
        })
        for function in require_matches(match_all(FUNCTION, text))
    ]  # fmt: skip


def bare_function_call(text: str, tools: ToolSchemas) -> list[ToolCall]:
    """Parse one call whose own tags were used as delimiters: small models forget the outer delimiters."""
    return function_calls(f"<function={text}</function>", tools)


def arg_key_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    name, separator, arguments = text.partition("<arg_key>")
    name = name.strip()
    if not re.fullmatch(r"[\w.:/-]+", name):
        raise ValueError("no tool name")
    matches = match_all(ARGUMENT, separator + arguments)
    return [ToolCall(name, {(key := match[1].strip()): tools.parse_argument(name, key, match[2]) for match in matches})]


def invoke_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    return [
        ToolCall(invoke[2], {each[2]: parameter_value(tools, invoke[2], each) for each in match_all(NAMED, invoke[3])})
        for invoke in require_matches(match_all(INVOKE, text))
    ]


def parameter_value(tools: ToolSchemas, name: str, parameter: re.Match[str]) -> object:
    """Convert an argument. DeepSeek marks string arguments itself."""
    if parameter[3] == "true":
        return parameter[4]
    return parse_json(parameter[4]) if parameter[3] else tools.parse_argument(name, parameter[2], parameter[4])


def match_all(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Return all matches. Raises ValueError if there is anything but white space between them."""
    matches = list(pattern.finditer(text))
    if pattern.sub("", text).strip():
        raise ValueError("unbalanced tags")
    return matches


def require_matches(matches: list[re.Match[str]]) -> list[re.Match[str]]:
    if not matches:
        raise ValueError("no tool name")
    return matches
