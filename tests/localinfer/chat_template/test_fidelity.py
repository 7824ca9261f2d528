"""Renderings compared with those of transformers and llama.cpp, as recorded by make_template_fixtures.py."""

import json

import pytest
import recorded
from conversations import ALL
from hugging_face import TOKENS
from make_template_fixtures import MESSAGES, TEMPLATES
from tiny import tiny_llama

from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.prompt import build_prompt
from localinfer.chat_template.sandbox import Renderer
from localinfer.chat_template.template import ChatTemplate
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

HUGGING_FACE = recorded.read("templates_transformers")
LLAMA_CPP = recorded.read("templates_llama_cpp")


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
    assert builtin_templates().keys() == LLAMA_CPP.keys()
    assert list(builtin_templates()) == sorted(builtin_templates())


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_builtin_template_matches_llama_cpp(name: str) -> None:
    renderer = Renderer(builtin_templates()[name])
    for roles, text in LLAMA_CPP[name].items():
        messages = [MESSAGES[role] for role in roles.removesuffix(".")]
        actual = renderer.render({"messages": messages, "add_generation_prompt": not roles.endswith(".")})
        assert actual == {"text": text}, roles
