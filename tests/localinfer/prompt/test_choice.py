"""Which template is used: the user's, by name, text or file; otherwise one of those in the model's file."""

import os
from pathlib import Path

import pytest
from tiny import Field, tiny_llama

from localinfer.errors import LocalInferError, Unsupported, UsageError
from localinfer.files.gguf import open_gguf
from localinfer.options import Options
from localinfer.prompt.choice import KEY, chosen
from localinfer.prompt.known import known

NAMED = {
    KEY: "{{ 'default' }}",
    f"{KEY}.tool_use": "{{ 'tool_use' }}",
    f"{KEY}.rag": "{{ 'rag' }}",
    f"{KEY}s": Field("ARRAY", ["tool_use", "rag", "gone"], "STRING"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("choice") / "m.gguf", **NAMED)


def text_of(path: Path, *, with_tools: bool = False, **options: str) -> str:
    return chosen(open_gguf(path), Options(**options), with_tools=with_tools).text


def test_the_files_own(path: Path) -> None:
    assert text_of(path) == "{{ 'default' }}"
    assert text_of(path, with_tools=True) == "{{ 'tool_use' }}"
    assert text_of(path, chat_template="rag", with_tools=True) == "{{ 'rag' }}"
    assert text_of(path, chat_template="default", with_tools=True) == "{{ 'default' }}"
    assert chosen(open_gguf(path), Options(), with_tools=True).where == f"{path}: tokenizer.chat_template.tool_use"


def test_a_file_with_one_template_has_it_for_tools_too(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{KEY: "{{ 1 }}"})
    assert text_of(path, with_tools=True) == "{{ 1 }}"


def test_a_known_name_and_a_text(path: Path) -> None:
    assert text_of(path, chat_template="llama3") == known()["llama3"]
    for text in "{{ messages }}", "{% if true %}llama3{% endif %}":
        assert text_of(path, chat_template=text) == text
    assert chosen(open_gguf(path), Options(chat_template="chatml"), with_tools=True).where == "--chat-template"


def test_a_name_of_the_files_own_is_stronger_than_a_known_one(tmp_path: Path) -> None:
    own = {f"{KEY}.chatml": "{{ 'own' }}", f"{KEY}s": Field("ARRAY", ["chatml"], "STRING")}
    assert text_of(tiny_llama(tmp_path / "m.gguf", **own), chat_template="chatml") == "{{ 'own' }}"


@pytest.mark.parametrize(("given", "hint"), [
    ("llama-3", "did you mean llama3?"), ("Chatml", "did you mean chatml?"), ("tool-use", "did you mean tool_use?"),
    ("nosuch", "there is no {{ and no {% in it"), ("gone", "there is no"), ("Hello\nyou", "there is no"),
    ("./nosuch.jinja", "--chat-template-file reads a file"), ("mine.txt", "--chat-template-file reads a file"),
])
def test_what_is_neither_a_name_nor_a_template(path: Path, given: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        text_of(path, chat_template=given)
    what = f"--chat-template: {given!r} is neither a template's name nor a template"
    assert str(error.value).startswith(f"{what}: {hint}")


def test_a_template_in_a_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ 'ä' }}\n", "utf-8")
    source = chosen(open_gguf(path), Options(chat_template_file=str(file)), with_tools=True)
    assert source == ("{{ 'ä' }}\n", f"--chat-template-file: {file}")


@pytest.mark.parametrize(("content", "error", "kind"), [
    (None, "No such file or directory", LocalInferError), (b"{{ \xff }}", "not UTF-8 at byte 3", LocalInferError),
    (b"chatml\n", "is no template: there is no {{ and no {% in it", UsageError), (b"", "is no template", UsageError),
])
def test_a_file_that_is_none(path: Path, tmp_path: Path, content: bytes | None, error: str, kind: type) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(kind, match=f"^--chat-template-file: {file}: {error}"):
        text_of(path, chat_template_file=str(file))


def test_a_file_can_have_any_name(path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"^--chat-template-file: 'a\\x00b': "):
        text_of(path, chat_template_file="a\0b")
    with pytest.raises(LocalInferError, match=r"Is a directory"):
        text_of(path, chat_template_file=os.sep)


def test_only_one_of_two(path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--chat-template and --chat-template-file: "):
        text_of(path, chat_template="chatml", chat_template_file="own.jinja")


def test_a_model_without_one(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{KEY: ""})
    with pytest.raises(Unsupported, match=rf"^{path}: {KEY}: missing: a base model .*--chat-template chatml tries it"):
        text_of(path)
    path = tiny_llama(tmp_path / "n.gguf", **NAMED | {KEY: ""})
    with pytest.raises(Unsupported, match=r"only templates with names \(--chat-template tool_use or rag\)$"):
        text_of(path)


def test_keys_of_the_wrong_kind(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **NAMED | {f"{KEY}.rag": 5})
    with pytest.raises(LocalInferError, match=rf"^{path}: {KEY}.rag: "):
        text_of(path)
    path = tiny_llama(tmp_path / "n.gguf", **{f"{KEY}s": "rag"})
    with pytest.raises(LocalInferError, match=rf"^{path}: {KEY}s: "):
        text_of(path)
