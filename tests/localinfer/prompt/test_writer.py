"""A model's prompts without the model: special tokens by their names, options, one process at a time."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import Field, tiny_gemma3, tiny_llama

from localinfer.files.gguf import open_gguf
from localinfer.options import Options
from localinfer.prompt.choice import KEY
from localinfer.prompt.conversation import Conversation
from localinfer.prompt.writer import PromptWriter
from localinfer.tokenizer import from_gguf

HELLO = [{"role": "user", "content": "Hello"}]


def writer_of(path: Path) -> PromptWriter:
    f = open_gguf(path)
    return PromptWriter(f, from_gguf(f))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PromptWriter]:
    own = {f"{KEY}.tool_use": "{{ tools[0].name }}", f"{KEY}s": Field("ARRAY", ["tool_use"], "STRING")}
    with writer_of(tiny_llama(tmp_path_factory.mktemp("writer") / "llama.gguf", **own)) as writer:
        yield writer


def text_of(writer: PromptWriter, template: str = "", **given: object) -> str:
    options = Options(chat_template=template, system_prompt=str(given.pop("system_prompt", "")))
    return writer.write(Conversation(**{"messages": HELLO, **given}), options).text  # type: ignore[arg-type]


def test_special_tokens_have_hugging_faces_names(tmp_path: Path, llama: PromptWriter) -> None:
    names = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
    template = ", ".join(f"{{{{ {name}_token }}}}{{{{ {name}_token is defined }}}}" for name in names)
    assert text_of(llama, template).split(", ") == [
        "<|im_start|>True", "<|im_end|>True", "<|endoftext|>True", "False", "False", "False", "False",
    ]  # fmt: skip
    with writer_of(tiny_gemma3(tmp_path / "gemma.gguf")) as gemma:
        assert text_of(gemma, "{{ bos_token }}{{ pad_token }}{{ unk_token }}") == "<bos><pad><unk>"
        assert text_of(gemma, "{{ bos_token }}", template_kwargs={"bos_token": "<eos>"}) == "<bos><eos>"


def test_a_model_without_bos_has_an_empty_one(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    tokenizer = from_gguf(f)
    tokenizer.bos = None
    with PromptWriter(f, tokenizer) as writer:
        assert text_of(writer, "{{ bos_token + messages[0].content }}") == "Hello"


def test_the_system_prompt_goes_first_unless_there_is_one(llama: PromptWriter) -> None:
    roles = "{{ messages | map(attribute='role') | join(' ') }} {{ messages[0].content }}"
    assert text_of(llama, roles) == "user Hello"
    assert text_of(llama, roles, system_prompt="Be brief.") == "system user Be brief."
    for role in "system", "developer":
        told = [{"role": role, "content": "Be long."}, *HELLO]
        assert text_of(llama, roles, messages=told, system_prompt="Be brief.") == f"{role} user Be long."


def test_variables_of_a_conversation_are_stronger_than_the_options(llama: PromptWriter) -> None:
    options = Options(chat_template="{{ a }}{{ b }}", chat_template_kwargs='{"a": 1, "b": 2}')
    conversation = Conversation(messages=HELLO, template_kwargs={"b": 3})
    assert llama.write(conversation, options).text == "13"


def test_tools_have_a_template_of_their_own(llama: PromptWriter) -> None:
    assert text_of(llama, tools=[{"name": "now"}]) == "now"
    assert text_of(llama).startswith("<|im_start|>user\nHello")


def test_a_template_keeps_its_process(llama: PromptWriter) -> None:
    options = Options(chat_template="chatml")
    first = llama.template(options)
    assert llama.template(options, with_tools=True) is first
    assert llama.template(Options()) is not first
    assert first.render(HELLO).startswith("<|im_start|>user")  # it starts another one


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_template_from_a_pipe_is_read_once(llama: PromptWriter, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=pipe.write_text, args=("{{ messages | length }}",))
    thread.start()
    options = Options(chat_template_file=str(pipe))
    assert [llama.write(Conversation(messages=HELLO * n), options).text for n in (1, 2)] == ["1", "2"]
    thread.join()


EFFORT, SWITCH = "{{ reasoning_effort }}", "{{ enable_thinking }}"


def test_how_much_to_think(llama: PromptWriter) -> None:
    assert text_of(llama, EFFORT) == ""
    options = Options(chat_template=EFFORT, reasoning_effort="low")
    assert llama.write(Conversation(messages=HELLO), options).text == "low"
    stronger = Conversation(messages=HELLO, template_kwargs={"reasoning_effort": "high"})
    assert llama.write(stronger, options).text == "high"


@pytest.mark.parametrize("given", [{"think": "off"}, {"reasoning_effort": "low"}])
def test_what_a_template_does_not_ask_for(llama: PromptWriter, given: dict[str, str]) -> None:
    llama.prepare(Options(chat_template=EFFORT + SWITCH, **given))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="the chat template "):
        llama.prepare(Options(chat_template="{{ messages }}", **given))  # type: ignore[arg-type]
