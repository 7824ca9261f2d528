"""Resolution of the first word of a command line: commands, models and suggestions."""

from pathlib import Path

import pytest

from cli.app import COMMANDS
from cli.arguments.commands import ALIASES, UNSUPPORTED_COMMANDS, resolve_command
from cli.arguments.questions import named_files, split_model
from localinfer.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("", "--help"),
        ("chat x", "chat x"),
        ("run x", "run x"),
        ("help", "--help"),
        ("help run", "run --help"),
        ("version", "--version"),
        ("--version", "--version"),
        ("-h", "-h"),
        ("smollm2", "chat smollm2"),
        ("smollm2 Hello", "chat smollm2 Hello"),
        ("dir/model.gguf -c 5", "chat dir/model.gguf -c 5"),
        ("-m x.gguf -p Hello", "chat -m x.gguf -p Hello"),
        ("--temp 0", "chat --temp 0"),
        ("Why?", "chat Why?"),
        ("これは何ですか", "chat これは何ですか"),
        ("--debug smollm2", "--debug chat smollm2"),
        ("ollama", "--help"),
        ("ollama -v", "--version"),
        ("ollama rm x", "rm --yes x"),
        ("llama cli -hf a/b", "cli -hf a/b"),
        ("llama serve -hf a/b", "serve -hf a/b"),
        ("llama-retrieval -m x", "retrieval -m x"),
        ("--debug generate x", "--debug generate x"),
        ("--show-completion zsh", "--show-completion zsh"),
        ("--show-completion", "--show-completion fish"),
    ],
)
def test_resolve_command(monkeypatch: pytest.MonkeyPatch, typed: str, meant: str) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert resolve_command(typed.split(), COMMANDS) == meant.split()


@pytest.mark.parametrize("word", UNSUPPORTED_COMMANDS)
def test_unsupported_commands(word: str) -> None:
    with pytest.raises(UsageError, match=rf"^{word}: .{{20}}"):
        resolve_command([word, "x"], COMMANDS)


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("bnch", "bench"), ("smolm2", "smollm2"), ("Generate", "generate"), ("rnu", "run")],
)
def test_nearest(word: str, suggestion: str) -> None:
    with pytest.raises(UsageError, match=f"^{word}: no such command or model; did you mean {suggestion}"):
        resolve_command([word], COMMANDS)


def test_a_sentence_without_quotation_marks() -> None:
    with pytest.raises(UsageError, match=r"^What: no such command or model; .*quotation marks make a question"):
        resolve_command(["What", "is", "3+4?"], COMMANDS)


def test_a_file_without_suffix_is_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    assert resolve_command(["mine"], COMMANDS) == ["chat", "mine"]
    with pytest.raises(UsageError, match=r"^yours: no such command or model; quotation marks make a question"):
        resolve_command(["yours"], COMMANDS)


@pytest.mark.parametrize("question", ["Why is it blue?", "What does a/b.py do", "Hi!", "one\ntwo", "x" * 5000 + " y"])
def test_a_question_starts_a_chat(question: str) -> None:
    assert resolve_command([question, "-n", "5"], COMMANDS) == ["chat", question, "-n", "5"]
    assert split_model(question, ["more"]) == (None, [question, "more"])


@pytest.mark.parametrize("word", ["my model.gguf", "hf:o/r and more", "smollm2", "llama3.2:1b", "mine"])
def test_a_model_is_no_question(word: str) -> None:
    assert split_model(word, ["Why?"]) == (word, ["Why?"])


def test_words_after_a_session() -> None:
    """With --continue, a word that names no model is a part of the question."""
    assert split_model("And", ["in", "Go?"], has_model=True) == (None, ["And", "in", "Go?"])
    assert split_model("smollm2", ["Why?"], has_model=True) == ("smollm2", ["Why?"])
    assert split_model("missing.gguf", [], has_model=True) == ("missing.gguf", [])


def test_files_that_a_question_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli").mkdir()
    for name in ("notes.txt", "cli/app.py", "plain"):
        (tmp_path / name).touch()
    text = f"Compare notes.txt, 'cli/app.py', plain and {tmp_path}/notes.txt with other.txt and notes.txt. What/is it?"
    assert [*named_files(text)] == ["notes.txt", "cli/app.py", f"{tmp_path}/notes.txt"]


def test_command_names_are_unique() -> None:
    assert not ALIASES.keys() & COMMANDS.keys()
    assert not UNSUPPORTED_COMMANDS.keys() & (ALIASES.keys() | COMMANDS.keys())
    assert set(ALIASES.values()) <= COMMANDS.keys()
