"""`localinfer cache`: what is stored on disk, and how it is removed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model, for which the prompt cache has a directory of its own."""
    monkeypatch.setattr("localinfer.paths.prefixes_dir", lambda: tmp_path / "prefixes")
    return tiny_llama(tmp_path / "stored.gguf", n_ctx=2048)


def generate(run: Run, model: Path, *arguments: object) -> dict[str, int]:
    """Generate a token after a prompt of more than 512 tokens, and return the statistics."""
    prompt = "one two three four five " * 40
    code, out, err = run("generate", model, "-p", prompt, "-n", 1, "--json", "-t", 1, *arguments)
    assert code == 0, err
    found: dict[str, int] = json.loads(out)
    return found


def test_list_prune_and_clear(run: Run, model: Path) -> None:
    assert run("cache") == run("cache", "clear") == (0, "", "no prompts are stored\n")
    generate(run, model, "--prefix-store")
    generate(run, model, "--prefix-store")
    code, out, err = run("cache")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["model", "stored.gguf"]
    assert "prompts are in" in err
    generate(run, model, "--prefix-store", "--precision", "high")
    assert len(run("cache")[1].splitlines()) == 2  # other settings are in the same row
    assert run("cache", "clear", "-y")[0] == 0
    generate(run, model, "--prefix-store")
    generate(run, model, "--prefix-store")
    [stored] = json.loads(run("cache", "--json")[1])
    assert (stored["model"], len(stored["restored"])) == (str(model), 1)
    assert stored["restored"][0] >= 512
    assert run("cache", "clear", "other", "-y")[0] == 2
    assert run("cache", "clear")[0] == 2  # cannot ask without a terminal
    code, _, err = run("cache", "prune", "--max-size", 0)
    assert (code, err.endswith("0.00 GiB left\n")) == (0, True)
    assert json.loads(run("cache", "--json")[1])[0]["files"] == 0
    generate(run, model, "--prefix-store")
    assert run("cache", "clear", "stored", "-y")[0] == 0
    assert run("cache", "--json")[1] == "[]\n"


def test_the_store_can_be_switched_off(run: Run, model: Path) -> None:
    generate(run, model, "--no-prefix-store")
    generate(run, model, "--prefix-store", "--prefix-store-size", 0)
    assert run("cache", "--json")[1] == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [["other"], ["list", "model"], ["prune"], ["clear", "--max-size", "1"], ["clear", "--json"]],
    ids=" ".join,
)
def test_wrong_arguments(run: Run, model: Path, arguments: list[str]) -> None:
    code, out, err = run("cache", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_stored_files_are_private(run: Run, model: Path) -> None:
    generate(run, model, "--prefix-store")
    [directory] = (model.parent / "prefixes").iterdir()
    assert directory.stat().st_mode & 0o077 == 0 or os.name != "posix"
    assert all(path.stat().st_mode & 0o077 == 0 for path in directory.glob("*.block"))
