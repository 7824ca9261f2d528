"""The first word of a command line."""

from pathlib import Path

import pytest

from cli.app import COMMANDS
from cli.arguments.commands import INSTEAD, SAME, resolved
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
        ("--debug smollm2", "--debug chat smollm2"),
        ("--debug generate x", "--debug generate x"),
        ("--show-completion zsh", "--show-completion zsh"),
        ("--show-completion", "--show-completion fish"),
    ],
)
def test_meant(monkeypatch: pytest.MonkeyPatch, typed: str, meant: str) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert resolved(typed.split(), COMMANDS) == meant.split()


@pytest.mark.parametrize("word", INSTEAD)
def test_what_to_type_instead(word: str) -> None:
    with pytest.raises(UsageError, match=rf"^{word}: .{{20}}"):
        resolved([word, "x"], COMMANDS)


@pytest.mark.parametrize(
    ("word", "guess"),
    [("bnch", "bench"), ("smolm2", "smollm2"), ("Generate", "generate"), ("rnu", "run")],
)
def test_nearest(word: str, guess: str) -> None:
    with pytest.raises(UsageError, match=f"^{word}: neither a command nor a model; did you mean {guess}"):
        resolved([word], COMMANDS)


def test_a_file_without_an_ending_is_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    assert resolved(["mine"], COMMANDS) == ["chat", "mine"]
    with pytest.raises(UsageError, match=r"^yours: neither a command nor a model$"):
        resolved(["yours"], COMMANDS)


def test_names_of_commands_are_unique() -> None:
    assert not SAME.keys() & COMMANDS.keys()
    assert not INSTEAD.keys() & (SAME.keys() | COMMANDS.keys())
    assert set(SAME.values()) <= COMMANDS.keys()
