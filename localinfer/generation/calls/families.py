"""Which chat template writes calls in which form, told by what stands in its text.

The facts are those of the templates themselves, and of what llama.cpp's common/chat.cpp knows about them.
"""

from typing import NamedTuple

from localinfer.generation.calls.call import Reader
from localinfer.generation.calls.gemma import gemma_calls
from localinfer.generation.calls.json_calls import json_calls, named_json
from localinfer.generation.calls.marked_names import deepseek_calls, kimi_calls
from localinfer.generation.calls.mistral import mistral_calls
from localinfer.generation.calls.pythonic import pythonic_calls
from localinfer.generation.calls.tagged import arg_keys, functions, invokes, lone_function

END = ""  # in the place of a closing mark: the end of the answer


class Frame(NamedTuple):
    """The marks around calls, and who reads what stands between them.

    A call with its end cut off may look like a whole one: then it `must_close`.
    """

    opening: str
    closing: str
    read: Reader
    must_close: bool = False


class Family(NamedTuple):
    name: str
    signs: tuple[str, ...]  # a template that has all of these
    frames: tuple[Frame, ...]


HARMONY = ("<|channel|>", "<|message|>")  # signs of gpt-oss, whose answers come in channels: harmony.py
LONE = Frame("<function=", "</function>", lone_function)

FAMILIES = (
    Family("mistral", ("[TOOL_CALLS]",), (Frame("[TOOL_CALLS]", END, mistral_calls),)),
    Family(
        "deepseek", ("<｜tool▁calls▁begin｜>",), (
            Frame("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls),
        )),
    Family(
        "deepseek-dsml", ("DSML", "function_calls"), (
            Frame("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", invokes),
        )),
    Family("deepseek-dsml", ("DSML",), (Frame("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", invokes),)),
    Family(
        "kimi", ("<|tool_calls_section_begin|>",), (
            Frame("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_calls),
        )),
    Family(
        "seed", ("<seed:tool_call>", "<function="), (
            Frame("<seed:tool_call>", "</seed:tool_call>", functions), LONE,
        )),
    Family(
        "qwen3-coder", ("<function=", "<parameter="), (Frame("<tool_call>", "</tool_call>", functions), LONE)),
    Family("functionary", ("<function=",), (
        Frame("<function=", "</function>", named_json), Frame("<|python_tag|>", END, pythonic_calls),
    )),
    Family("glm", ("<tool_call>", "<arg_key>"), (Frame("<tool_call>", "</tool_call>", arg_keys, must_close=True),)),
    Family(
        "minimax", ("<minimax:tool_call>",), (Frame("<minimax:tool_call>", "</minimax:tool_call>", invokes),)),
    Family("gemma", ("<|tool_call>call:",), (Frame("<|tool_call>", "<tool_call|>", gemma_calls),)),
    Family("lfm2", ("<|tool_call_start|>",), (
        Frame("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls),
    )),
    Family("lfm2", ("<|tool_list_start|>",), (
        Frame("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls),
    )),
    Family("granite", ("<|tool_call|>",), (Frame("<|tool_call|>", END, json_calls),)),
    Family("command", ("<|START_ACTION|>",), (Frame("<|START_ACTION|>", "<|END_ACTION|>", json_calls),)),
    Family("nemotron", ("<TOOLCALL>",), (Frame("<TOOLCALL>", "</TOOLCALL>", json_calls),)),
    Family("apriel", ("<tool_calls>",), (
        Frame("<tool_calls>", "</tool_calls>", json_calls), Frame("<tool_call>", "</tool_call>", json_calls),
    )),
    Family("hermes", ("<tool_call>",), (Frame("<tool_call>", "</tool_call>", json_calls),)),
    Family("llama", ("<|python_tag|>",), (Frame("<|python_tag|>", END, pythonic_calls),)),
    Family("llama", ("dictionary of argument name and its value",), (Frame("<|python_tag|>", END, pythonic_calls),)),
)  # fmt: skip
OTHERS = Family("others", (), (Frame("<tool_call>", "</tool_call>", json_calls),))  # what most are trained on


def family(template: str) -> Family:
    """The first whose signs are all there."""
    return next((each for each in FAMILIES if all(sign in template for sign in each.signs)), OTHERS)


def is_harmony(template: str) -> bool:
    return all(sign in template for sign in HARMONY)
