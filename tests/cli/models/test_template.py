"""`localinfer template`: the exact prompt on stdout, and one-line errors."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_gemma3, tiny_llama

from cli import __main__

Run = Callable[..., tuple[int, str, str]]
CHATML = "<|im_start|>user\nHello<|im_end|>\n"
ANSWER = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("cli") / "llama.gguf"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command in this process: exit code, stdout and stderr."""

    def template(*arguments: str) -> tuple[int, str, str]:
        code = __main__.run(["template", *arguments])
        return code, *capsys.readouterr()

    return template


def file_of(folder: Path, value: object, name: str = "messages.json") -> str:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return str(path)


@pytest.fixture
def hello(tmp_path: Path) -> str:
    return file_of(tmp_path, [{"role": "user", "content": "Hello"}])


def test_default_messages(run: Run, llama: str) -> None:
    code, out, err = run(llama)
    assert (code, err) == (0, "")
    assert out == (
        f"{CHATML}<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n{ANSWER}"
    )


def test_messages_from_a_file(run: Run, llama: str, hello: str) -> None:
    assert run(llama, "--messages", hello) == (0, CHATML + ANSWER, "")
    assert run(llama, "--messages", hello, "--no-generation-prompt") == (0, CHATML, "")
    assert run(llama, "--messages", hello, "--continue-final-message")[1] == "<|im_start|>user\nHello"
    result = run(llama, "--messages", hello, "-sys", "Be brief.")
    assert result[1] == f"<|im_start|>system\nBe brief.<|im_end|>\n{CHATML}{ANSWER}"


def test_ids_and_json(run: Run, llama: str, hello: str) -> None:
    ids = json.loads(run(llama, "--messages", hello, "--ids")[1])
    assert ids[0] == 1
    assert json.loads(run(llama, "--messages", hello, "--json")[1]) == {"text": CHATML + ANSWER, "ids": ids}


def test_bos_is_shown_if_it_is_added(run: Run, hello: str, tmp_path: Path) -> None:
    gemma = str(tiny_gemma3(tmp_path / "gemma.gguf"))
    _, out, _ = run(gemma, "--messages", hello, "--chat-template", "gemma")
    assert out == "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"


def test_special_token_text_in_a_message_is_plain_text(run: Run, llama: str, tmp_path: Path) -> None:
    conversation = file_of(tmp_path, [{"role": "user", "content": "<|im_end|>"}])
    _, out, _ = run(llama, "--messages", conversation)
    assert out == CHATML.replace("Hello", "<|im_end|>") + ANSWER
    assert json.loads(run(llama, "--messages", conversation, "--ids")[1]).count(2) == 1


def test_tools_documents_and_variables(run: Run, llama: str, hello: str, tmp_path: Path) -> None:
    template = file_of(tmp_path, "{{ [tools, documents, enable_thinking] | tojson }}", "own.jinja")
    tools, documents = file_of(tmp_path, [{"name": "f"}], "tools.json"), file_of(tmp_path, [{"text": "é"}], "d.json")
    _, out, err = run(
        llama, "--messages", hello, "--chat-template-file", template, "--tools", tools, "--documents", documents,
        "--chat-template-kwargs", '{"enable_thinking": false}')
    assert out == '[[{"type": "function", "function": {"name": "f"}}], [{"text": "é"}], false]', err


def test_stdin(llama: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "localinfer", "template", llama, "--messages", "-"]
    done = subprocess.run(
        command, input='[{"role": "user", "content": "Hello"}]', env=environment, capture_output=True, text=True)
    assert done.stdout == CHATML + ANSWER, done.stderr
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: nothing to read: stdin is not a pipe\n")


def test_imports_neither_engine_nor_kernels(llama: str, environment: dict[str, str]) -> None:
    listing = [sys.executable, "-X", "importtime", "-m", "localinfer", "template", llama]
    done = subprocess.run(listing, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    for heavy in "numba", "jinja2", "localinfer.runtime", "localinfer.model", "localinfer.graph", "quant.matmul":
        assert not re.search(rf"\| +{heavy}\b", done.stderr), heavy


@pytest.mark.parametrize(("arguments", "code", "error"), [
    (["--messages", "nosuch.json"], 1, "nosuch.json: No such file or directory"),
    (["--messages", "{"], 1, "invalid JSON: Expecting property name"),
    (["--messages", "[" * 10**6], 1, "invalid JSON: "),
    (["--messages", "{}"], 2, "messages: must be a list of at least one message"),
    (["--messages", "[]"], 2, "messages: must be a list of at least one message"),
    (["--messages", '[{"role": "user"}]'], 2, "messages[0].content: must be a string or a list of parts"),
    (["--tools", '["f"]'], 2, ": [0]: must be a function with a name"),
    (["--documents", '["text"]'], 2, "documents[0]: must be a mapping"),
    (["--chat-template-kwargs", "enable_thinking"], 2, "chat_template_kwargs: invalid JSON: "),
    (["--chat-template-kwargs", '{"tools": []}'], 2, "template_kwargs: tools is reserved"),
    (["--chat-template", "lama3"], 2, "'lama3' is neither a template name nor a template: did you mean llama3?"),
    (["--chat-template", "x.jinja"], 2, "(--chat-template-file) reads a file"),
    (["--chat-template-file", "x.jinja"], 1, "chat_template_file: x.jinja: No such file or directory"),
    (["--chat-template", "{{ raise_exception('No.') }}"], 1, "chat_template: No."),
    (["--chat-template", "{% if %}"], 1, "chat_template: line 1: "),
])  # fmt: skip
def test_errors_are_one_line(
    run: Run, llama: str, tmp_path: Path, arguments: list[str], code: int, error: str
) -> None:
    flag, value = arguments
    if value[0] in "[{" and flag in ("--messages", "--tools", "--documents"):
        value = file_of(tmp_path, value)
    actual, out, err = run(llama, flag, value)
    assert (actual, out) == (code, "")
    assert err.startswith("error: ")
    assert error in err
    assert err.count("\n") == 1


def test_a_model_without_a_template(run: Run, tmp_path: Path) -> None:
    gemma = str(tiny_gemma3(tmp_path / "gemma.gguf"))
    code, out, err = run(gemma)
    assert (code, out) == (3, "")
    assert "missing: a base model cannot chat" in err


def test_options_from_the_environment(run: Run, llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_CHAT_TEMPLATE", "{{ messages | length }}")
    assert run(llama) == (0, "3", "")
    assert run(llama, "--chat-template", "{{ 1 }}") == (0, "1", "")
