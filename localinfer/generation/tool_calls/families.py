"""Families of chat templates and their tool-call formats, detected by markers in the template's text.

Sources are the templates themselves and llama.cpp's common/chat.cpp.
"""

from typing import NamedTuple

from localinfer.generation.tool_calls.gemma import gemma_calls
from localinfer.generation.tool_calls.json_calls import json_calls, named_json
from localinfer.generation.tool_calls.mistral import mistral_calls
from localinfer.generation.tool_calls.named_calls import deepseek_calls, kimi_calls
from localinfer.generation.tool_calls.pythonic import pythonic_calls
from localinfer.generation.tool_calls.tool_call import CallReader
from localinfer.generation.tool_calls.xml_calls import arg_key_calls, bare_function_call, function_calls, invoke_calls

END = ""  # a closing delimiter that stands for the end of the answer


class CallFormat(NamedTuple):
    """The delimiters around calls, and the function that parses the text between them.

    A truncated call may look like a complete one; with `must_close` the closing delimiter is required.
    """

    opening: str
    closing: str
    read: CallReader
    must_close: bool = False


class Family(NamedTuple):
    """A family of chat templates: those that contain all of its markers."""

    name: str
    markers: tuple[str, ...]
    formats: tuple[CallFormat, ...]


HARMONY = ("<|channel|>", "<|message|>")  # markers of gpt-oss, see harmony.py
BARE_FUNCTION = CallFormat("<function=", "</function>", bare_function_call)

FAMILIES = (
    Family("mistral", ("[TOOL_CALLS]",), (CallFormat("[TOOL_CALLS]", END, mistral_calls),)),
    Family(
        "deepseek", ("<｜tool▁calls▁begin｜>",), (
            CallFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls),
        )),
    Family(
        "deepseek-dsml", ("DSML", "function_calls"), (
            CallFormat("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", invoke_calls),
        )),
    Family("deepseek-dsml", ("DSML",), (CallFormat("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", invoke_calls),)),
    Family(
        "kimi", ("<|tool_calls_section_begin|>",), (
            CallFormat("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_calls),
        )),
    Family(
        "seed", ("<seed:tool_call>", "<function="), (
            CallFormat("<seed:tool_call>", "</seed:tool_call>", function_calls), BARE_FUNCTION,
        )),
    Family(
        "qwen3-coder", ("<function=", "<parameter="), (
            CallFormat("<tool_call>", "</tool_call>", function_calls), BARE_FUNCTION,
        )),
    Family("functionary", ("<function=",), (
        CallFormat("<function=", "</function>", named_json), CallFormat("<|python_tag|>", END, pythonic_calls),
    )),
    Family("glm", ("<tool_call>", "<arg_key>"), (
        CallFormat("<tool_call>", "</tool_call>", arg_key_calls, must_close=True),
    )),
    Family(
        "minimax", ("<minimax:tool_call>",), (
            CallFormat("<minimax:tool_call>", "</minimax:tool_call>", invoke_calls),
        )),
    Family("gemma", ("<|tool_call>call:",), (CallFormat("<|tool_call>", "<tool_call|>", gemma_calls),)),
    Family("lfm2", ("<|tool_call_start|>",), (
        CallFormat("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls),
    )),
    Family("lfm2", ("<|tool_list_start|>",), (
        CallFormat("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls),
    )),
    Family("granite", ("<|tool_call|>",), (CallFormat("<|tool_call|>", END, json_calls),)),
    Family("command", ("<|START_ACTION|>",), (CallFormat("<|START_ACTION|>", "<|END_ACTION|>", json_calls),)),
    Family("nemotron", ("<TOOLCALL>",), (CallFormat("<TOOLCALL>", "</TOOLCALL>", json_calls),)),
    Family("apriel", ("<tool_calls>",), (
        CallFormat("<tool_calls>", "</tool_calls>", json_calls), CallFormat("<tool_call>", "</tool_call>", json_calls),
    )),
    Family("hermes", ("<tool_call>",), (CallFormat("<tool_call>", "</tool_call>", json_calls),)),
    Family("llama", ("<|python_tag|>",), (CallFormat("<|python_tag|>", END, pythonic_calls),)),
    Family("llama", ("dictionary of argument name and its value",), (
        CallFormat("<|python_tag|>", END, pythonic_calls),
    )),
)  # fmt: skip
DEFAULT_FAMILY = Family(
    "others", (), (CallFormat("<tool_call>", "</tool_call>", json_calls),)
)  # the most common format


def find_family(template: str) -> Family:
    """Return the first family whose markers are all in the template."""
    return next((family for family in FAMILIES if all(marker in template for marker in family.markers)), DEFAULT_FAMILY)


def is_harmony(template: str) -> bool:
    """Return whether the chat template is gpt-oss's, with channels."""
    return all(marker in template for marker in HARMONY)
