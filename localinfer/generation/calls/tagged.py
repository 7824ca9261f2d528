"""Calls as tags, each argument a text between two of them: its type is the tool's to say.

    functions   <function=name><parameter=key>value</parameter></function>      Qwen3-Coder, Seed OSS, Nemotron 3
    arg_keys    name<arg_key>key</arg_key><arg_value>value</arg_value>           GLM 4.5 and later
    invokes     <invoke name="name"><parameter name="key">value</parameter></invoke>   MiniMax M2, DeepSeek V3.2
"""

import re

from localinfer.generation.calls.call import Tools, from_json
from localinfer.generation.pieces import Call

FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
INVOKE = re.compile(r'<(｜DSML｜|)invoke name="([^">\n]+)">(.*?)</\1invoke>', re.DOTALL)
NAMED = re.compile(
    r'<(｜DSML｜|)parameter name="([^">\n]+)"(?: string="(true|false)")?>(.*?)</\1parameter>', re.DOTALL
)


def functions(text: str, tools: Tools) -> list[Call]:
    return [
        Call(name := function[1].strip(), {
            (key := each[1].strip()): tools.value(name, key, each[2])
            for each in one_after_another(PARAMETER, function[2])
        })
        for function in some(one_after_another(FUNCTION, text))
    ]  # fmt: skip


def lone_function(text: str, tools: Tools) -> list[Call]:
    """One whose tags were taken for the marks around a call: small models forget the ones around these."""
    return functions(f"<function={text}</function>", tools)


def arg_keys(text: str, tools: Tools) -> list[Call]:
    name, mark, arguments = text.partition("<arg_key>")
    name = name.strip()
    if not re.fullmatch(r"[\w.:/-]+", name):
        raise ValueError("it names no tool")
    found = one_after_another(ARGUMENT, mark + arguments)
    return [Call(name, {(key := each[1].strip()): tools.value(name, key, each[2]) for each in found})]


def invokes(text: str, tools: Tools) -> list[Call]:
    return [
        Call(invoke[2], {each[2]: named_value(tools, invoke[2], each) for each in one_after_another(NAMED, invoke[3])})
        for invoke in some(one_after_another(INVOKE, text))
    ]


def named_value(tools: Tools, name: str, parameter: re.Match[str]) -> object:
    """DeepSeek says itself what is a text."""
    if parameter[3] == "true":
        return parameter[4]
    return from_json(parameter[4]) if parameter[3] else tools.value(name, parameter[2], parameter[4])


def one_after_another(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """All of them; ValueError if anything but space stands between."""
    found = list(pattern.finditer(text))
    if pattern.sub("", text).strip():
        raise ValueError("its tags are not closed as they should be")
    return found


def some(found: list[re.Match[str]]) -> list[re.Match[str]]:
    if not found:
        raise ValueError("it names no tool")
    return found
