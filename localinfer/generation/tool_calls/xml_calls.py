"""Calls with XML-like tags. Arguments are plain text, and the tool's schema determines their types.

A format has three patterns: the head of a call, with the group `name`; an argument, with the groups `key` and `value`
(or `cdata`), and `type` if the model writes it; and the tail of a call.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.tool_call import (
    CallReader,
    ToolSchemas,
    item_schema,
    parse_json,
    parse_unquoted,
    property_schema,
    schema_types,
)  # fmt: skip

MINIMAX = re.escape("]<]minimax[>[")  # before each tag of MiniMax M3
MINIMAX_INVOKE = re.compile(rf'{MINIMAX}<invoke name="([^">\n]+)">(.*?){MINIMAX}</invoke>', re.DOTALL)
MINIMAX_TAG = re.compile(rf"{MINIMAX}<(/?)([\w.-]+)>")


def tagged_calls(head: str, argument: str, tail: str) -> CallReader:
    """Return a function that parses calls of a format."""
    argument_pattern = re.compile(argument, re.DOTALL)
    # A value ends at the first closing tag. Without atomic groups, n arguments could be divided in 2^n ways.
    body = rf"(?P<body>(?>\s*{re.sub(r'[(][?]P<[a-z]+>', '(?:', argument)})*+)"
    call_pattern = re.compile(rf"{head}{body}\s*{tail}", re.DOTALL)

    def read(text: str, tools: ToolSchemas) -> list[ToolCall]:
        return [
            ToolCall(name := match["name"].strip(), {
                (key := each["key"].strip()): argument_value(tools, name, key, each.groupdict())
                for each in argument_pattern.finditer(match["body"])
            })
            for match in require_matches(match_all(call_pattern, text))
        ]  # fmt: skip

    return read


def invoke_calls(prefix: str) -> CallReader:
    """Return a function that parses calls in tags with this prefix."""
    return tagged_calls(
        rf'<{prefix}invoke name="(?P<name>[^">\n]+)">',
        rf'<{prefix}parameter name="(?P<key>[^">\n]+)"(?: string="(?P<type>true|false)")?>'
        rf"(?P<value>.*?)</{prefix}parameter>",
        f"</{prefix}invoke>",
    )


FUNCTION = r"<function=(?P<name>[^>\n]+)>"
# Qwen3-Coder, Qwen 3.5, Nemotron 3
function_calls = tagged_calls(
    FUNCTION, r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>", "</function>"
)
# Seed OSS, whose values keep their line breaks
seed_calls = tagged_calls(FUNCTION, r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>", "</function>")
# GLM 4.5 and later
arg_key_calls = tagged_calls(
    r"^\s*(?P<name>[\w.:/-]+)", r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", r"\Z"
)
minimax_m2_calls = invoke_calls("")
dsml_calls = invoke_calls("｜DSML｜")  # DeepSeek V3.2
atem_calls = invoke_calls("atem:")  # Muse Glimmer
# MiniCPM 5
param_calls = tagged_calls(
    r'<function name="(?P<name>[^">\n]+)">',
    r'<param name="(?P<key>[^">\n]+)">'
    r"(?:<!\[CDATA\[(?P<cdata>.*?)\]\]>|(?!<!\[CDATA\[)(?P<value>.*?))</param>",
    "</function>",
)
# Kimi K3
section_calls = tagged_calls(
    r'<\|open\|>call tool="(?P<name>[^"\n]+)"[^<]*<\|sep\|>',
    r'<\|open\|>argument key="(?P<key>[^"\n]+)" type="(?P<type>\w+)"<\|sep\|>'
    r"(?P<value>.*?)<\|close\|>argument<\|sep\|>",
    r"<\|close\|>call<\|sep\|>",
)
VALUES = (  # what begins and ends a value, in which delimiters do not count
    ("<![CDATA[", "]]>"), ("<parameter", "</parameter>"), ("<arg_value>", "</arg_value>"), ("<param ", "</param>"),
)  # fmt: skip
SUFFIXED_CALL = re.compile(r"\s*<tool_call([^<>]+)>")
SUFFIXED_VALUE = re.compile(r"<arg_value([^<>]+)>")


def argument_value(tools: ToolSchemas, name: str, key: str, groups: Mapping[str, str | None]) -> object:
    """Convert an argument. DeepSeek and Kimi K3 write the types of arguments themselves."""
    value = groups.get("cdata") or groups["value"] or ""
    declared = groups.get("type")
    if declared in ("true", "string"):
        return value
    return parse_json(value) if declared else tools.parse_argument(name, key, value)


def bare_function_call(text: str, tools: ToolSchemas) -> list[ToolCall]:
    """Parse one call whose own tags were used as delimiters: small models forget the outer delimiters."""
    return function_calls(f"<function={text}</function>", tools)


def bare_param_call(text: str, tools: ToolSchemas) -> list[ToolCall]:
    """Parse one call of MiniCPM 5, which has no outer delimiters."""
    return param_calls(f'<function name="{text}</function>', tools)


def ends_in_value(text: str) -> bool:
    """Return whether the text ends within the value of an argument."""
    suffix = SUFFIXED_VALUE.search(text)
    suffixed = [(f"<arg_value{suffix[1]}>", f"</arg_value{suffix[1]}>")] if suffix else []
    return any(text.rfind(opening) > text.rfind(closing) for opening, closing in (*VALUES, *suffixed))


# --- Hunyuan 3 and 4: all tags have the same suffix, such as <arg_key:opensource> ---


def hunyuan_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    match = SUFFIXED_CALL.match(text)
    return suffixed_calls(match[1] if match else "")(text, tools)


@lru_cache(maxsize=8)
def suffixed_calls(suffix: str) -> CallReader:
    """Return a function that parses calls in tags with this suffix."""
    end = f"{re.escape(suffix)}>"
    return tagged_calls(
        rf"<tool_call{end}\s*(?P<name>[\w.:/-]+)\s*(?:<tool_sep{end})?",
        rf"<arg_key{end}(?P<key>.*?)</arg_key{end}\s*<arg_value{end}(?P<value>.*?)</arg_value{end}",
        f"</tool_call{end}",
    )


# --- MiniMax M3: nested values are nested elements, those of a list are called item ---


def minimax_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    return [
        ToolCall(match[1], {
            key: element_value(value, tools.argument_schema(match[1], key)) for key, value in elements(match[2])
        })
        for match in require_matches(match_all(MINIMAX_INVOKE, text))
    ]  # fmt: skip


def element_value(text: str, schema: object) -> object:
    types = schema_types(schema)
    if "string" in types or not text.strip().startswith("]<]minimax[>["):
        empty: dict[str, object] = {"array": [], "object": {}}
        return next((empty[each] for each in types & empty.keys() if not text), parse_unquoted(text, schema))
    children = list(elements(text))
    if types != {"object"} and all(key == "item" for key, _ in children):
        return [element_value(value, item_schema(schema)) for _, value in children]
    return {key: element_value(value, property_schema(schema, key)) for key, value in children}


def elements(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the content of each outer element."""
    depth = start = end = 0
    for tag in MINIMAX_TAG.finditer(text):
        if tag[1]:
            depth -= 1
            if depth == 0:
                yield tag[2], text[start : tag.start()]
                end = tag.end()
        else:
            if depth == 0 and text[end : tag.start()].strip():
                raise ValueError("text between arguments")
            start = tag.end() if depth == 0 else start
            depth += 1
    if depth or text[end:].strip():
        raise ValueError("unbalanced tags")


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
