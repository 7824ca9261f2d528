"""Families of chat templates and their tool-call formats, detected by markers in the template's text.

Sources are the templates themselves and llama.cpp's common/chat.cpp.
"""

import re
from typing import NamedTuple

from localinfer.generation.reasoning import ReasoningTags
from localinfer.generation.tool_calls.addressed_messages import FUNCTIONARY, HARMONY, MUSE, MessageFormat
from localinfer.generation.tool_calls.call_syntax import (
    COMMAND,
    COMMAND_R,
    DEEPSEEK,
    DEEPSEEK_R1,
    DSML,
    FUNCTION_GEMMA,
    GEMMA,
    GLM,
    HUNYUAN3,
    HUNYUAN4,
    INVOKE,
    JSON_CALL,
    JSON_LIST,
    KIMI,
    KIMI_K3,
    LLAMA,
    MINICPM,
    MINIMAX_M3,
    OLMO,
    PLAMO,
    PYTHONIC,
    QWEN_CODER,
    SEED,
    SOLAR,
    CallSyntax,
)
from localinfer.generation.tool_calls.gemma import function_gemma_calls, gemma_calls
from localinfer.generation.tool_calls.json_calls import json_calls, json_list, keyed_calls, named_json
from localinfer.generation.tool_calls.mistral import mistral_calls
from localinfer.generation.tool_calls.named_calls import (
    bare_kimi_calls,
    deepseek_calls,
    kimi_calls,
    plamo_calls,
    solar_calls,
)  # fmt: skip
from localinfer.generation.tool_calls.pythonic import pythonic_calls
from localinfer.generation.tool_calls.tool_call import CallReader
from localinfer.generation.tool_calls.xml_calls import (
    arg_key_calls,
    bare_function_call,
    bare_param_call,
    dsml_calls,
    function_calls,
    hunyuan_calls,
    minimax_calls,
    minimax_m2_calls,
    section_calls,
    seed_calls,
)  # fmt: skip

END = ""  # a closing delimiter that stands for the end of the answer
SUFFIX = re.compile(r"""<arg_key(:[^<>{}\s]+)>|=\s*(['"])(?P<inserted>:[\w-]+)\2""")  # of the tags of Hunyuan 3 and 4


class CallFormat(NamedTuple):
    """The delimiters around calls, and the function that parses the text between them.

    A truncated call may look like a complete one; with `must_close` the closing delimiter is required.
    """

    opening: str
    closing: str
    read: CallReader
    must_close: bool = False
    syntax: CallSyntax | None = None  # of calls that a grammar constrains


class Family(NamedTuple):
    """A family of chat templates, those that contain all of its markers, and what its answers may contain.

    `ignored` are markers that are not part of the text. The tags of the reasoning are those that the template contains,
    unless the family has its own. With `has_suffix`, {} stands for a suffix of all tags, which the template determines.
    """

    name: str
    markers: tuple[str, ...]
    calls: tuple[CallFormat, ...]
    ignored: tuple[str, ...] = ()
    reasoning: ReasoningTags | None = None
    bare: CallSyntax | None = None  # of calls without delimiters, which the model writes instead of those with them
    has_suffix: bool = False

    def with_suffix(self, suffix: str) -> "Family":
        """Return the family with this suffix in its tags."""
        calls = tuple(
            call._replace(
                opening=call.opening.replace("{}", suffix), closing=call.closing.replace("{}", suffix),
                syntax=call.syntax and call.syntax.with_suffix(suffix),
            )
            for call in self.calls
        )  # fmt: skip
        return self._replace(calls=calls, reasoning=self.reasoning and self.reasoning.with_suffix(suffix))

    @property
    def answer_markers(self) -> list[str]:
        """All delimiters and tags that answers may contain."""
        calls = [text for each in self.calls for text in (each.opening, each.closing) if text]
        return [*calls, *self.ignored, *(self.reasoning[:2] if self.reasoning else ())]


MESSAGE_FORMATS = {
    ("<|channel|>", "<|message|>"): HARMONY,  # gpt-oss
    ("<atem:function_calls>", "<|message|>"): MUSE,
    (">>>all",): FUNCTIONARY,
}
TOOL_CALL = CallFormat(  # the most common format
    "<tool_call>", "</tool_call>", json_calls, syntax=CallSyntax(f"\n{JSON_CALL}\n", between="\n")
)
BARE_FUNCTION = CallFormat("<function=", "</function>", bare_function_call)
PYTHON_TAG = CallFormat("<|python_tag|>", END, pythonic_calls)

FAMILIES = (
    Family("mistral", ("[TOOL_CALLS]", "[ARGS]"), (
        CallFormat("[TOOL_CALLS]", END, mistral_calls, syntax=CallSyntax("$NAME[ARGS]$ARGUMENTS", between="")),
    )),
    Family("mistral", ("[TOOL_CALLS]",), (CallFormat("[TOOL_CALLS]", END, mistral_calls, syntax=JSON_LIST),)),
    Family("deepseek", ("<｜tool▁calls▁begin｜>", "```json"), (
        CallFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls, syntax=DEEPSEEK_R1),
    )),
    Family("deepseek", ("<｜tool▁calls▁begin｜>",), (
        CallFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls, syntax=DEEPSEEK),
    )),
    Family("deepseek-dsml", ("DSML", "function_calls"), (
        CallFormat("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", dsml_calls, syntax=DSML),
    )),
    Family("deepseek-dsml", ("DSML",), (
        CallFormat("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", dsml_calls, syntax=DSML),
    )),
    Family("kimi", ("<|tool_calls_section_begin|>",), (
        CallFormat("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_calls, syntax=KIMI),
        CallFormat("<|tool_call_begin|>", END, bare_kimi_calls),
    )),
    Family("kimi-k3", ("<|open|>", "<|sep|>"), (
        CallFormat("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", section_calls, syntax=KIMI_K3),
    ), ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
    Family("seed", ("<seed:tool_call>", "<function="), (
        CallFormat("<seed:tool_call>", "</seed:tool_call>", seed_calls, syntax=SEED), BARE_FUNCTION,
    )),
    Family("qwen3-coder", ("<function=", "<parameter="), (
        CallFormat("<tool_call>", "</tool_call>", function_calls, syntax=QWEN_CODER), BARE_FUNCTION,
    )),
    Family("minicpm", ("<function name=", "<param name="), (
        CallFormat('<function name="', "</function>", bare_param_call, syntax=MINICPM),
    )),
    Family("functionary", ("<function=",), (
        CallFormat("<function=", "</function>", named_json, syntax=CallSyntax("$NAME>$ARGUMENTS", between="\n")),
        PYTHON_TAG,
    )),
    Family("hunyuan", ("<tool_calls", "<tool_sep", "<arg_key"), (
        CallFormat("<tool_calls{}>", "</tool_calls{}>", hunyuan_calls, syntax=HUNYUAN3),
    ), reasoning=ReasoningTags("<think{}>", "</think{}>"), has_suffix=True),
    Family("hunyuan", ("<tool_calls", "<arg_key"), (
        CallFormat("<tool_calls{}>", "</tool_calls{}>", hunyuan_calls, syntax=HUNYUAN4),
    ), reasoning=ReasoningTags("<think{}>", "</think{}>"), has_suffix=True),
    Family("hunyuan", ("<answer>", "</think>"), (
        CallFormat("<tool_calls>", "</tool_calls>", json_calls, syntax=JSON_LIST), TOOL_CALL,
    ), ("<answer>\n", "<answer>", "\n</answer>", "</answer>")),
    Family("glm", ("<tool_call>", "<arg_key>"), (
        CallFormat("<tool_call>", "</tool_call>", arg_key_calls, must_close=True, syntax=GLM),
    )),
    Family("minimax-m3", ("]<]minimax[>[",), (
        CallFormat("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", minimax_calls, syntax=MINIMAX_M3),
    )),
    Family("dots", ("<dots_function_call>",), (
        CallFormat("<dots_function_call>", "</dots_function_call>", minimax_m2_calls, syntax=INVOKE),
    )),
    Family("minimax", ("<minimax:tool_call>",), (
        CallFormat("<minimax:tool_call>", "</minimax:tool_call>", minimax_m2_calls, syntax=INVOKE),
    )),
    Family("gemma", ("<|tool_call>call:",), (
        CallFormat("<|tool_call>", "<tool_call|>", gemma_calls, syntax=GEMMA),
    )),
    Family("gemma", ("<start_function_call>",), (
        CallFormat("<start_function_call>", "<end_function_call>", function_gemma_calls, syntax=FUNCTION_GEMMA),
    )),
    Family("lfm2", ("<|tool_call_start|>",), (
        CallFormat("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls, syntax=PYTHONIC),
    )),
    Family("lfm2", ("<|tool_list_start|>",), (
        CallFormat("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls, syntax=PYTHONIC),
    )),
    Family("lfm2", ("List of tools: [", "keep_past_thinking"), (
        CallFormat("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls, syntax=PYTHONIC),
    )),
    Family("olmo", ("<function_calls>",), (
        CallFormat("<function_calls>", "</function_calls>", pythonic_calls, syntax=OLMO),
    )),
    Family("solar", ("<|tool_call:begin|>",), (
        CallFormat("<|tool_calls|>", "<|calls|>", solar_calls, syntax=SOLAR),
    ), ("<|end|><|begin|>assistant", "<|begin|>assistant", "<|content|>", "<|end|>"),
        ReasoningTags("<|think|>", "<|end|><|begin|>assistant")),
    Family("plamo", ("plamo:", "tool_requests"), (
        CallFormat(
            "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>", plamo_calls, syntax=PLAMO,
        ),
    ), reasoning=ReasoningTags("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>")),
    Family("pangu", ("[unused11]",), (
        CallFormat("[unused11]", "[unused12]", json_calls, syntax=JSON_LIST),
    ), reasoning=ReasoningTags("[unused16]", "[unused17]")),
    Family("phi", ("<|tool|>",), (
        CallFormat("<|tool_call|>", "<|/tool_call|>", json_calls, syntax=JSON_LIST),
        CallFormat("functools[", END, json_list),
    )),
    Family("granite", ("<|tool_call|>",), (CallFormat("<|tool_call|>", END, json_calls, syntax=JSON_LIST),)),
    Family("command", ("<|START_ACTION|>",), (
        CallFormat("<|START_ACTION|>", "<|END_ACTION|>", json_calls, syntax=COMMAND),
    ), (
        "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>",
    )),
    Family("command-r", ("Action:", "<|CHATBOT_TOKEN|>"), (
        CallFormat("Action:\n```json", "```", json_calls, syntax=COMMAND_R),
    ), ("<|CHATBOT_TOKEN|>",)),
    Family("nemotron", ("<TOOLCALL>",), (CallFormat("<TOOLCALL>", "</TOOLCALL>", json_calls, syntax=JSON_LIST),)),
    Family("apriel", ("<tool_calls>",), (
        CallFormat("<tool_calls>", "</tool_calls>", json_calls, syntax=JSON_LIST), TOOL_CALL,
    )),
    Family("apertus", ("<|tools_prefix|>",), (
        CallFormat("<|tools_prefix|>", "<|tools_suffix|>", keyed_calls, syntax=CallSyntax(
            '{"$NAME": $ARGUMENTS}', "[", ", ", "]")),
    )),
    Family("gigachat", ("<|function_call|>",), (
        CallFormat("<|function_call|>", END, json_calls, syntax=CallSyntax(JSON_CALL)),
    )),
    Family("gigachat", ("<|role_sep|>", "<|message_sep|>"), (
        CallFormat("<|message_sep|>\n\nfunction call<|role_sep|>\n", END, json_calls, syntax=CallSyntax(JSON_CALL)),
    )),
    Family("firefunction", ("functools[",), (
        CallFormat("functools[", END, json_list, syntax=CallSyntax(JSON_CALL, "", ", ", "]")),
    )),
    Family("ernie", ("<tool_call>", "<response>"), (TOOL_CALL,), (
        "<response>\n", "<response>", "\n</response>", "</response>",
    )),
    Family("hermes", ("<tool_call>",), (TOOL_CALL,)),
    Family("llama", ("<|python_tag|>",), (PYTHON_TAG,), bare=LLAMA),
    Family("llama", ("dictionary of argument name and its value",), (PYTHON_TAG,), bare=LLAMA),
)  # fmt: skip
DEFAULT_FAMILY = Family("others", (), (TOOL_CALL,))


def find_family(template: str) -> Family:
    """Return the first family whose markers are all in the template."""
    matching = (family for family in FAMILIES if all(marker in template for marker in family.markers))
    family = next(matching, DEFAULT_FAMILY)
    return family.with_suffix(tag_suffix(template)) if family.has_suffix else family


def tag_suffix(template: str) -> str:
    """Return the suffix that a template has in its tags, or inserts into them; "" if there is none."""
    match = SUFFIX.search(template)
    return (match[1] or match["inserted"]) if match else ""


def find_message_format(template: str) -> MessageFormat | None:
    """Return the format of answers that consist of messages with headers; None for all other templates."""
    formats = MESSAGE_FORMATS.items()
    return next((format for markers, format in formats if all(marker in template for marker in markers)), None)
