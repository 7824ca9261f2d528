"""`localinfer tokenize`, and control tokens in generated text, on a tiny model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

import localinfer
from cli import __main__
from cli.generation.generate import with_control_tokens
from localinfer import Piece

Run = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "m.gguf")


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command and returns its stdout."""

    def command(*arguments: str) -> str:
        assert __main__.run(["tokenize", str(model), "--no-bos", *arguments]) == 0
        return capsys.readouterr().out

    return command


def test_output_formats(run: Run) -> None:
    ids = json.loads(run("-p", "Hello<|im_end|>", "--ids"))
    lines = run("-p", "Hello<|im_end|>", "--show-count").splitlines()
    assert [int(line.split()[0]) for line in lines[:-1]] == ids
    assert lines[-1] == f"Total number of tokens: {len(ids)}"
    assert lines[-2].endswith("-> '<|im_end|>'")
    actual = json.loads(run("-p", "Hello<|im_end|>", "--json"))["tokens"]
    assert [token["id"] for token in actual] == ids
    assert "".join(token["piece"] for token in actual) == "Hello<|im_end|>"


def test_partial_characters_are_shown_as_bytes(run: Run) -> None:
    actual = [token["piece"] for token in json.loads(run("-p", "\N{GRINNING FACE}", "--json"))["tokens"]]
    assert bytes(byte for piece in actual for byte in piece).decode() == "\N{GRINNING FACE}"


def test_escapes_and_special_tokens(run: Run) -> None:
    assert run("-p", r"a\nb", "-e") == run("-p", "a\nb")
    assert run("-p", "<|im_end|>", "--no-parse-special") == run("-p", "<|im_end|>", "--no-special")
    assert run("-p", "<|im_end|>", "--no-special").count("\n") > 1


def test_control_tokens_in_generated_text(model: Path) -> None:
    with localinfer.load(model, ctx_size=32) as opened:
        [control] = opened.tokenize("<|im_end|>", add_special=False, parse_special=True)
        [letter] = opened.tokenize("H", add_special=False)
        incomplete = opened.tokenize("\N{GRINNING FACE}", add_special=False)[0]
        pieces = [Piece("H", letter), Piece("", control), Piece("", incomplete)]
        assert [piece.text for piece in with_control_tokens(opened, iter(pieces))] == ["H", "<|im_end|>", ""]
