"""Output files never replace the files that a command reads, nor models."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from cli.files.output_files import is_model_file
from localinfer.gguf.source import Field
from localinfer.gguf.writer import make_layout

Run = Callable[..., tuple[int, str, str]]
TEXT = "one of these words\n" * 40
ITEM = '{"ctx_a": "A man", "ctx_b": "sits", "activity_label": "Rest", "endings": ["a", "b", "c", "d"], "label": "0"}\n'


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf").read_bytes()


@pytest.fixture
def folder(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and texts, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(content)
    (tmp_path / "link.gguf").symlink_to("model.gguf")
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "items").write_text(ITEM)
    return tmp_path


@pytest.mark.parametrize("command", [
    ["imatrix", "MODEL", "-f", "text", "-c", "64", "-o", "OUT"],
    ["control-vector", "MODEL", "--positive", "text", "--negative", "text", "-o", "OUT"],
    ["chat", "MODEL", "Hello", "-f", "text", "-o", "OUT"],
    ["chat", "MODEL", "Hello", "--system-prompt-file", "text", "-o", "OUT"],
    ["eval", "MODEL", "hellaswag", "items", "--fewshot-file", "text", "-o", "OUT", "--restart"],
    ["profile", "MODEL", "--trace", "OUT"],
], ids=" ".join)  # fmt: skip
def test_inputs_are_not_replaced(run: Run, folder: Path, content: bytes, command: list[str]) -> None:
    names = {"model.gguf": "is a model file", "link.gguf": "is a model file", "text": "is an input file"}
    for name, message in names.items():
        if command[0] == "profile" and name == "text":  # which is no input
            continue
        words = [{"MODEL": "model.gguf", "OUT": name}.get(word, word) for word in command]
        option = "--trace" if command[0] == "profile" else "--output"
        code, _, err = run(*words)
        assert (code, err) == (2, f"error: {option}: {name}: {message}; choose another name\n")
    assert (folder / "model.gguf").read_bytes() == content
    assert (folder / "text").read_text() == TEXT


def test_texts_of_embeddings_are_not_replaced(run: Run, folder: Path) -> None:
    (folder / "text").rename("text.jsonl")
    code, _, err = run("embed", "model.gguf", "-f", "text.jsonl", "-o", "text.jsonl")
    assert (code, err) == (2, "error: --output: text.jsonl: is an input file; choose another name\n")
    assert (folder / "text.jsonl").read_text() == TEXT


def test_adapters_are_not_replaced(run: Run, folder: Path) -> None:
    code, _, err = run("merge", "model.gguf", "--lora", "text", "-o", "text", "--force")
    assert (code, err) == (2, "error: --output: text: is an input file; choose another name\n")
    assert (folder / "text").read_text() == TEXT


def test_a_conversation_is_replaced_only_after_the_model_is_opened(run: Run, folder: Path) -> None:
    code, _, _ = run("chat", "missing.gguf", "Hello", "-o", "text")
    assert (code, (folder / "text").read_text()) == (3, TEXT)


def test_model_files(folder: Path) -> None:
    for name, is_model in {"model.gguf": True, "link.gguf": True, "text": False, "missing": False}.items():
        assert is_model_file(folder / name) == is_model
    (folder / "cut.gguf").write_bytes((folder / "model.gguf").read_bytes()[:1000])
    assert is_model_file(folder / "cut.gguf")
    for key, value in (("general.type", "imatrix"), ("general.architecture", "controlvector")):
        (folder / value).write_bytes(make_layout({key: Field.text(value)}, []).header)
        assert not is_model_file(folder / value)
