"""Renderings compared with those of transformers, llama.cpp and programs of models, which make_template_fixtures.py
recorded.
"""

import json

import pytest
import recorded
from conversations import ALL, QUESTION, TOOLS
from hugging_face import TOKENS
from make_template_fixtures import MESSAGES, PROGRAM_MESSAGES, PROGRAM_TEXTS, TEMPLATES
from tiny import tiny_llama

from localinfer.chat_template.builtin_templates import LLAMA_CPP_FILE, builtin_templates, templates_of
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.prompt import build_prompt
from localinfer.chat_template.sandbox import Renderer
from localinfer.chat_template.template import ChatTemplate
from localinfer.conversion.vocabulary.template_programs import with_texts
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

HUGGING_FACE = recorded.read("templates_transformers")
LLAMA_CPP = recorded.read("templates_llama_cpp")
PROGRAMS = recorded.read("templates_programs")
BOS = "<｜begin▁of▁sentence｜>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_gguf(open_gguf(tiny_llama(tmp_path_factory.mktemp("fidelity") / "llama.gguf")))


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_matches_transformers(name: str) -> None:
    """Render in this process, because the test compares only the language and its variables."""
    expected = HUGGING_FACE[name]
    assert expected["source"] == TEMPLATES[name]
    renderer = Renderer(expected["source"])
    for which, answer in expected["answers"].items():
        if not ALL[which].get("continue_final_message"):
            variables = json.loads(json.dumps(Conversation(**ALL[which]).variables()))
            actual = renderer.render(TOKENS | variables)
            assert actual == answer if "text" in answer else "error" in actual, which


@pytest.mark.parametrize("name", ["turns", "trimmed turns", "training", "parts"])
def test_open_message_matches_transformers(tokenizer: Tokenizer, name: str) -> None:
    expected = HUGGING_FACE[name]
    template = ChatTemplate(expected["source"], TOKENS)
    which = "open, in parts" if name == "parts" else "open"
    prompt = build_prompt(template, tokenizer, Conversation(**ALL[which]))
    assert prompt.text == expected["answers"][which]["text"]


def test_all_llama_cpp_formats_are_built_in() -> None:
    assert builtin_templates().keys() == LLAMA_CPP.keys() | PROGRAMS.keys() | {"kimi-k3"}
    assert list(templates_of(LLAMA_CPP_FILE)) == sorted(LLAMA_CPP)


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_builtin_template_matches_llama_cpp(name: str) -> None:
    renderer = Renderer(builtin_templates()[name])
    for roles, text in LLAMA_CPP[name].items():
        messages = [MESSAGES[role] for role in roles.removesuffix(".")]
        actual = renderer.render({"messages": messages, "add_generation_prompt": not roles.endswith(".")})
        assert actual == {"text": text}, roles


@pytest.mark.parametrize("name", PROGRAMS)
def test_builtin_template_matches_the_program(name: str) -> None:
    renderer = Renderer(with_texts(builtin_templates()[name], PROGRAM_TEXTS))
    for case, text in PROGRAMS[name].items():
        which, *switches = case.split(", ")
        variables = {
            "messages": PROGRAM_MESSAGES[which],
            "tools": TOOLS if "tools" in switches else None,
            "bos_token": BOS,
            "add_generation_prompt": which != "finished",
            "enable_thinking": "thinking" in switches,
        }
        assert renderer.render(variables) == {"text": text}, case


def test_variables_of_templates_instead_of_programs() -> None:
    renderer = Renderer(builtin_templates()["deepseek4"])
    variables = {"messages": [QUESTION], "bos_token": BOS, "add_generation_prompt": True}
    question = f"<｜User｜>{QUESTION['content']}<｜Assistant｜>"
    assert renderer.render(variables) == {"text": f"{BOS}{question}</think>"}
    assert renderer.render({**variables, "thinking": True}) == {"text": f"{BOS}{question}<think>"}
    text = renderer.render({**variables, "thinking": True, "reasoning_effort": "max"})["text"]
    assert text.startswith(f"{BOS}Reasoning effort: as great as possible")
    assert text.endswith(f"before you answer.\n\n{question}<think>")
    loud = Renderer(with_texts(builtin_templates()["deepseek4"], PROGRAM_TEXTS))
    assert loud.render({**variables, "thinking": True, "reasoning_effort": "max"}) == {
        "text": f"{BOS}Think {{hard}}!\n\n{question}<think>"
    }
    bare, wrapped = ({**variables, "tools": tools} for tools in ([TOOLS[0]["function"]], TOOLS[:1]))
    assert renderer.render(bare) == renderer.render(wrapped)
    reminded = [{"role": "latest_reminder", "content": "It is noon."}, QUESTION]
    assert renderer.render({**variables, "messages": reminded}) == {
        "text": f"{BOS}<｜latest_reminder｜>It is noon.{question}</think>"
    }
