"""Calls in which marks stand around a name and its arguments in JSON.

    DeepSeek V3, R1   <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\\n```json\\n{...}\\n```<｜tool▁call▁end｜>
    DeepSeek V3.1     <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    Kimi K2           <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
"""

import re

from localinfer.generation.calls.call import Tools, call
from localinfer.generation.calls.tagged import one_after_another, some
from localinfer.generation.pieces import Call

DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
FENCED = re.compile(r"\s*(\S+)\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)
KIMI = re.compile(r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL)


def deepseek_calls(text: str, _: Tools) -> list[Call]:
    calls = []
    for found in some(one_after_another(DEEPSEEK, text)):
        fenced = FENCED.fullmatch(found[2])
        calls.append(call(fenced[1], fenced[2]) if fenced else call(found[1], found[2]))
    return calls


def kimi_calls(text: str, _: Tools) -> list[Call]:
    """The whole mark is the call's id, by which the result is told to the model."""
    return [
        call(found[1].strip().removeprefix("functions.").rpartition(":")[0], found[2], found[1].strip())
        for found in some(one_after_another(KIMI, text))
    ]
