"""Prompts without a loaded model: special tokens, options, and one template process at a time."""

import os
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tiny import Field, tiny_gemma3, tiny_llama

from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.prompt_builder import PromptBuilder
from localinfer.chat_template.template_selection import TEMPLATE_KEY
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.tokenizer import from_gguf

HELLO = [{"role": "user", "content": "Hello"}]


def builder_of(path: Path) -> PromptBuilder:
    f = open_gguf(path)
    return PromptBuilder(f, from_gguf(f))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PromptBuilder]:
    names = Field("ARRAY", ["tool_use"], "STRING")
    own = {f"{TEMPLATE_KEY}.tool_use": "{{ tools[0].name }}", f"{TEMPLATE_KEY}s": names}
    with builder_of(tiny_llama(tmp_path_factory.mktemp("writer") / "llama.gguf", **own)) as builder:
        yield builder


def text_of(builder: PromptBuilder, template: str = "", **variables: object) -> str:
    options = Options(chat_template=template, system_prompt=str(variables.pop("system_prompt", "")))
    return builder.build(Conversation(**{"messages": HELLO, **variables}), options).text  # type: ignore[arg-type]


def test_special_token_names(tmp_path: Path, llama: PromptBuilder) -> None:
    names = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
    template = ", ".join(f"{{{{ {name}_token }}}}{{{{ {name}_token is defined }}}}" for name in names)
    assert text_of(llama, template).split(", ") == [
        "<|im_start|>True", "<|im_end|>True", "<|endoftext|>True", "False", "False", "False", "False",
    ]  # fmt: skip
    with builder_of(tiny_gemma3(tmp_path / "gemma.gguf")) as gemma:
        assert text_of(gemma, "{{ bos_token }}{{ pad_token }}{{ unk_token }}") == "<bos><pad><unk>"
        assert text_of(gemma, "{{ bos_token }}", template_kwargs={"bos_token": "<eos>"}) == "<bos><eos>"


def test_missing_bos_is_empty(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    tokenizer = from_gguf(f)
    tokenizer.bos = None
    with PromptBuilder(f, tokenizer) as builder:
        assert text_of(builder, "{{ bos_token + messages[0].content }}") == "Hello"


def test_system_prompt_comes_first(llama: PromptBuilder) -> None:
    roles = "{{ messages | map(attribute='role') | join(' ') }} {{ messages[0].content }}"
    assert text_of(llama, roles) == "user Hello"
    assert text_of(llama, roles, system_prompt="Be brief.") == "system user Be brief."
    for role in "system", "developer":
        messages = [{"role": role, "content": "Be long."}, *HELLO]
        assert text_of(llama, roles, messages=messages, system_prompt="Be brief.") == "system user Be long."


def test_developer_role(llama: PromptBuilder) -> None:
    """Templates that do not know the role `developer` see `system`, which they would otherwise drop or refuse."""
    messages = [{"role": "developer", "content": "Be long."}, *HELLO]
    known = "{% if messages[0].role == 'developer' %}{{ messages[0].content }}{% endif %}"
    unknown = "{# for a developer #}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    assert text_of(llama, known, messages=messages) == text_of(llama, unknown, messages=messages) == "Be long."
    assert messages[0]["role"] == "developer"


def test_conversation_variables_override_options(llama: PromptBuilder) -> None:
    options = Options(chat_template="{{ a }}{{ b }}", chat_template_kwargs='{"a": 1, "b": 2}')
    conversation = Conversation(messages=HELLO, template_kwargs={"b": 3})
    assert llama.build(conversation, options).text == "13"


def test_tool_use_template(llama: PromptBuilder) -> None:
    assert text_of(llama, tools=[{"name": "now"}]) == "now"
    assert text_of(llama).startswith("<|im_start|>user\nHello")


def test_template_process_is_reused(llama: PromptBuilder) -> None:
    options = Options(chat_template="chatml")
    first = llama.template(options)
    assert llama.template(options, with_tools=True) is first
    assert llama.template(Options()) is not first
    assert first.render(HELLO).startswith("<|im_start|>user")  # starts a new process


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_template_pipe_is_read_once(llama: PromptBuilder, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=pipe.write_text, args=("{{ messages | length }}",))
    thread.start()
    options = Options(chat_template_file=str(pipe))
    assert [llama.build(Conversation(messages=HELLO * n), options).text for n in (1, 2)] == ["1", "2"]
    thread.join()


EFFORT, SWITCH = "{{ reasoning_effort }}", "{{ enable_thinking }}"


def test_reasoning_effort(llama: PromptBuilder) -> None:
    assert text_of(llama, EFFORT) == ""
    options = Options(chat_template=EFFORT, reasoning_effort="low")
    assert llama.build(Conversation(messages=HELLO), options).text == "low"
    stronger = Conversation(messages=HELLO, template_kwargs={"reasoning_effort": "high"})
    assert llama.build(stronger, options).text == "high"


@pytest.mark.parametrize(("template", "text"), [
    (EFFORT, "none"), (EFFORT + "{# 'no_think' #}", "no_think"), (EFFORT + SWITCH, "noneFalse"),
])  # fmt: skip
def test_no_reasoning_effort(llama: PromptBuilder, template: str, text: str) -> None:
    options = Options(chat_template=template, reasoning_effort="none")
    assert llama.build(Conversation(messages=HELLO), options).text == text


def test_today(llama: PromptBuilder) -> None:
    """Templates such as Llama 3.3's assume a day in 2024 if they get none."""
    source = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }}"
    assert datetime.strptime(text_of(llama, source), "%d %b %Y").year >= 2025
    given = Conversation(messages=HELLO, template_kwargs={"date_string": "1 May"})
    assert llama.build(given, Options(chat_template=source)).text == "1 May"


@pytest.mark.parametrize("reasoning_options", [{"think": "off"}, {"reasoning_effort": "low"}])
def test_unsupported_reasoning_options_warn(llama: PromptBuilder, reasoning_options: dict[str, str]) -> None:
    llama.prepare(Options(chat_template=EFFORT + SWITCH, **reasoning_options))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="the chat template "):
        llama.prepare(Options(chat_template="{{ messages }}", **reasoning_options))  # type: ignore[arg-type]
