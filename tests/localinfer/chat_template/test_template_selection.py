"""Selection of the template: the user's, by name, text or file; otherwise a template of the model file."""

import os
from pathlib import Path

import pytest
from tiny import Field, tiny_llama

from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.chat_template.template_selection import TEMPLATE_KEY, select_template
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options

NAMED = {
    TEMPLATE_KEY: "{{ 'default' }}",
    f"{TEMPLATE_KEY}.tool_use": "{{ 'tool_use' }}",
    f"{TEMPLATE_KEY}.rag": "{{ 'rag' }}",
    f"{TEMPLATE_KEY}s": Field("ARRAY", ["tool_use", "rag", "gone"], "STRING"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("choice") / "m.gguf", **NAMED)


def text_of(path: Path, *, with_tools: bool = False, **options: str) -> str:
    return select_template(open_gguf(path), Options(**options), with_tools=with_tools).text


def test_template_of_the_file(path: Path) -> None:
    assert text_of(path) == "{{ 'default' }}"
    assert text_of(path, with_tools=True) == "{{ 'tool_use' }}"
    assert text_of(path, chat_template="rag", with_tools=True) == "{{ 'rag' }}"
    assert text_of(path, chat_template="default", with_tools=True) == "{{ 'default' }}"
    location = select_template(open_gguf(path), Options(), with_tools=True).location
    assert location == f"{path}: tokenizer.chat_template.tool_use"


def test_single_template_is_used_with_tools(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{TEMPLATE_KEY: "{{ 1 }}"})
    assert text_of(path, with_tools=True) == "{{ 1 }}"


def test_builtin_name_and_template_text(path: Path) -> None:
    assert text_of(path, chat_template="llama3") == builtin_templates()["llama3"]
    for text in "{{ messages }}", "{% if true %}llama3{% endif %}":
        assert text_of(path, chat_template=text) == text
    options = Options(chat_template="chatml")
    assert select_template(open_gguf(path), options, with_tools=True).location == "chat_template"


def test_file_template_overrides_builtin_name(tmp_path: Path) -> None:
    own = {f"{TEMPLATE_KEY}.chatml": "{{ 'own' }}", f"{TEMPLATE_KEY}s": Field("ARRAY", ["chatml"], "STRING")}
    assert text_of(tiny_llama(tmp_path / "m.gguf", **own), chat_template="chatml") == "{{ 'own' }}"


@pytest.mark.parametrize(("value", "hint"), [
    ("llama-3", "did you mean llama3?"), ("Chatml", "did you mean chatml?"), ("tool-use", "did you mean tool_use?"),
    ("nosuch", "it contains neither {{ nor {%"), ("gone", "it contains neither"), ("Hello\nyou", "it contains neither"),
    ("./nosuch.jinja", "chat_template_file (--chat-template-file) reads a file"),
    ("mine.txt", "chat_template_file (--chat-template-file) reads a file"),
])
def test_neither_name_nor_template(path: Path, value: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        text_of(path, chat_template=value)
    what = f"chat_template: {value!r} is neither a template name nor a template"
    assert str(error.value).startswith(f"{what}: {hint}")


def test_template_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ 'ä' }}\n", "utf-8")
    source = select_template(open_gguf(path), Options(chat_template_file=str(file)), with_tools=True)
    assert source == ("{{ 'ä' }}\n", f"chat_template_file: {file}")


@pytest.mark.parametrize(("content", "error", "kind"), [
    (None, "No such file or directory", LocalInferError), (b"{{ \xff }}", "not UTF-8 at byte 3", LocalInferError),
    (b"chatml\n", "not a template: it contains neither {{ nor {%", UsageError), (b"", "not a template", UsageError),
])
def test_invalid_template_file(path: Path, tmp_path: Path, content: bytes | None, error: str, kind: type) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(kind, match=f"^chat_template_file: {file}: {error}"):
        text_of(path, chat_template_file=str(file))


def test_template_file_with_any_name(path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"^chat_template_file: 'a\\x00b': "):
        text_of(path, chat_template_file="a\0b")
    with pytest.raises(LocalInferError, match=r"Is a directory"):
        text_of(path, chat_template_file=os.sep)


def test_both_flags_are_rejected(path: Path) -> None:
    with pytest.raises(UsageError, match=r"^chat_template and chat_template_file: "):
        text_of(path, chat_template="chatml", chat_template_file="own.jinja")


def test_model_without_template(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{TEMPLATE_KEY: ""})
    error = rf"^{path}: {TEMPLATE_KEY}: missing: a base model .*chat_template \(--chat-template\) to chatml"
    with pytest.raises(UnsupportedError, match=error):
        text_of(path)
    path = tiny_llama(tmp_path / "n.gguf", **NAMED | {TEMPLATE_KEY: ""})
    with pytest.raises(UnsupportedError, match=r"only named templates: set .* to tool_use or rag$"):
        text_of(path)


def test_metadata_keys_of_wrong_type(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **NAMED | {f"{TEMPLATE_KEY}.rag": 5})
    with pytest.raises(LocalInferError, match=rf"^{path}: {TEMPLATE_KEY}.rag: "):
        text_of(path)
    path = tiny_llama(tmp_path / "n.gguf", **{f"{TEMPLATE_KEY}s": "rag"})
    with pytest.raises(LocalInferError, match=rf"^{path}: {TEMPLATE_KEY}s: "):
        text_of(path)
