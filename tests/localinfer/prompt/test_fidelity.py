"""Renderings beside those of transformers and of llama.cpp, which make_template_fixtures.py has written down."""

import json

import pytest
from conversations import ALL
from hugging_face import TOKENS
from make_template_fixtures import MESSAGES, TEMPLATES
from places import DATA
from tiny import tiny_llama

from localinfer.files.gguf import open_gguf
from localinfer.prompt.conversation import Conversation
from localinfer.prompt.known import known
from localinfer.prompt.prompt import chat_prompt
from localinfer.prompt.sandbox import Renderer
from localinfer.prompt.template import ChatTemplate
from localinfer.tokenizer import Tokenizer, from_gguf

HUGGING_FACE = json.loads((DATA / "templates_transformers.json").read_text("utf-8"))
LLAMA_CPP = json.loads((DATA / "templates_llama_cpp.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_gguf(open_gguf(tiny_llama(tmp_path_factory.mktemp("fidelity") / "llama.gguf")))


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_as_transformers_renders_it(name: str) -> None:
    """In this process: what is compared is the language, and what it is given."""
    expected = HUGGING_FACE[name]
    assert expected["source"] == TEMPLATES[name]
    renderer = Renderer(expected["source"])
    for which, answer in expected["answers"].items():
        if not ALL[which].get("continue_final_message"):
            variables = json.loads(json.dumps(Conversation(**ALL[which]).variables()))
            found = renderer.render(TOKENS | variables)
            assert found == answer if "text" in answer else "error" in found, which


@pytest.mark.parametrize("name", ["turns", "trimmed turns", "training", "parts"])
def test_as_transformers_leaves_a_message_open(tokenizer: Tokenizer, name: str) -> None:
    expected = HUGGING_FACE[name]
    template = ChatTemplate(expected["source"], TOKENS)
    which = "open, in parts" if name == "parts" else "open"
    prompt = chat_prompt(template, tokenizer, Conversation(**ALL[which]))
    assert prompt.text == expected["answers"][which]["text"]


def test_all_of_llama_cpps_formats_are_known() -> None:
    assert known().keys() == LLAMA_CPP.keys()
    assert list(known()) == sorted(known())


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_as_llama_cpp_writes_it(name: str) -> None:
    renderer = Renderer(known()[name])
    for roles, text in LLAMA_CPP[name].items():
        messages = [MESSAGES[role] for role in roles.removesuffix(".")]
        found = renderer.render({"messages": messages, "add_generation_prompt": not roles.endswith(".")})
        assert found == {"text": text}, roles
