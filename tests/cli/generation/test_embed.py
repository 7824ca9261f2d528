"""Options of `localinfer embed` that llama-embedding has."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_separator(run: Run, model: Path) -> None:
    def embeddings(*arguments: str) -> list[object]:
        code, out, err = run("embed", model, "-c", 64, "-t", 1, "--pooling", "last", *arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    assert embeddings("-p", "one<#>two", "--embd-separator", "<#>") == embeddings("-p", "one", "-p", "two")


def test_attention(run: Run, model: Path) -> None:
    code, _, err = run("embed", model, "-c", 64, "-t", 1, "-p", "one", "--attention", "non-causal")
    assert (code, "--attention non-causal: the attention of this model is causal" in err) == (3, True)
    assert run("embed", model, "-c", 64, "-t", 1, "-p", "one", "--attention", "causal")[0] == 0
