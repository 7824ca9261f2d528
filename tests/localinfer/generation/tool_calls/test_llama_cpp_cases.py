"""The cases of llama.cpp's tests of chats: each answer is parsed as there, whole and in random pieces.

    LLAMA_CPP=path/to/llama.cpp python -m pytest tests/localinfer/generation/tool_calls/test_llama_cpp_cases.py

The source is in the source distribution of llama-cpp-python: vendor/llama.cpp. Nothing of it is in this repository.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llama_cpp_chat_cases import SOURCE, Case, read_cases

from localinfer.chat_template.content_format import render_in_supported_format
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.template import ChatTemplate
from localinfer.errors import LocalInferError
from localinfer.generation.tool_calls import ParseResult, answer_parser

LLAMA_CPP = Path(os.environ.get("LLAMA_CPP", "no folder"))
END_OF_TURN = ("<|role_end|>", "<|END_OF_TURN_TOKEN|>")  # generation stops before these tokens
MIN_CASES, MIN_EQUAL = 380, 0.97

# Why a case is not run.
SKIPPED = {
    "is_partial": "the arguments of a call are not streamed before it is complete",
    "continue_final_message": "an answer does not repeat the beginning that the request already has",
}
# Why a case is parsed differently: (template, what differs) -> reason.
DIFFERENT = {
    ("Apriel-1.6-15b-Thinker-fixed.jinja", "reasoning"): "the heading of the reasoning belongs to the prompt",
    ("Qwen3.5-4B.jinja", "reasoning"): "an opening tag that the model repeats is not part of the reasoning",
    ("Qwen3.5-4B.jinja", "content"): "without a reasoning format, the opening tag of the prompt is not repeated",
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja", "content"): "the same",
    ("Cohere2MoE.jinja", "content"): "the same",
    ("inclusionai-ling-3.0-flash.jinja", "calls"): "a call within reasoning counts only at the end of the answer",
    ("mistralai-Ministral-3-14B-Reasoning-2512.jinja", "content"): "a constraint leaves no code fence to remove",
    ("meta-llama-Llama-3.1-8B-Instruct.jinja", "content"): "the same",
}

pytestmark = pytest.mark.skipif(
    not (LLAMA_CPP / SOURCE).is_file(), reason="LLAMA_CPP does not name the folder of llama.cpp's source"
)


class PlainTokenizer:
    """A vocabulary without control tokens."""

    def split(self, text: str, *, strip: bool = True) -> list[str]:
        return [text]


@cache
def template_of(name: str) -> ChatTemplate:
    source = (LLAMA_CPP / "models" / "templates" / name).read_text("utf-8")
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


def test_cases_of_llama_cpp() -> None:
    outcomes: Counter[str] = Counter()
    unexplained = []
    for case in read_cases(LLAMA_CPP):
        if case.settings.keys() & SKIPPED:
            continue
        template, prompt = template_of(case.template), prompt_of(case)
        answer = case.answer
        for end in END_OF_TURN:
            answer = answer.removesuffix(end)
        parsed = parse(case, template, prompt, [answer])
        for seed in range(3):
            streamed = parse(case, template, prompt, random_pieces(answer, seed))
            assert comparable(streamed) == comparable(parsed), f"{SOURCE}:{case.line}"
        differences = [name for name, expected in expectations(case).items() if comparable(parsed)[name] != expected]
        outcomes["equal" if not differences else "different"] += 1
        if differences and (case.template, differences[-1]) not in DIFFERENT:
            unexplained.append(f"{SOURCE}:{case.line} {differences}: {parsed}")
    assert not unexplained, "\n".join(unexplained)
    assert outcomes.total() >= MIN_CASES
    assert outcomes["equal"] >= MIN_EQUAL * outcomes.total()


def prompt_of(case: Case) -> str:
    conversation = Conversation(
        messages=case.messages,
        tools=case.tools or None,
        template_kwargs={"enable_thinking": case.settings.get("enable_thinking", True)},
    )
    try:
        return render_in_supported_format(template_of(case.template), conversation.variables()).text
    except LocalInferError:
        assert not case.tools  # some templates are only for requests with tools
        return ""


def parse(case: Case, template: ChatTemplate, prompt: str, pieces: Sequence[str]) -> ParseResult:
    reasoning_format = case.settings.get("reasoning_format", "COMMON_REASONING_FORMAT_NONE")
    tokenizer: Any = PlainTokenizer()
    parser = answer_parser(
        template.source, tokenizer, case.tools, prompt=prompt, with_reasoning=not reasoning_format.endswith("NONE")
    )
    parsed = ParseResult()
    for piece in pieces:
        parsed = parsed.joined_with(parser.push(piece))
    return parsed.joined_with(parser.finish())


def random_pieces(answer: str, seed: int) -> list[str]:
    return list(iter_random_pieces(answer, random.Random(seed)))


def iter_random_pieces(answer: str, source: random.Random) -> Iterator[str]:
    while answer:
        size = source.randint(1, 6)
        yield answer[:size]
        answer = answer[size:]


def comparable(parsed: ParseResult) -> dict[str, object]:
    """Return the texts without the white space around them, which llama.cpp's tests do not compare, and the calls."""
    calls = [(call.name, call.arguments) for call in parsed.calls]
    return {"content": parsed.text.strip(), "reasoning": parsed.reasoning.strip(), "calls": calls}


def expectations(case: Case) -> dict[str, object]:
    calls = [(name, arguments) for name, arguments, _ in case.calls]
    return {"content": case.content.strip(), "reasoning": case.reasoning.strip(), "calls": calls}
