"""The command `localinfer retrieve`: passages of files that are similar to a query."""

import json
from collections.abc import Callable
from pathlib import Path

import documented_files
import numpy as np
import pytest

import localinfer
from localinfer.embedding.passages import most_similar, split_text

Run = Callable[..., tuple[int, str, str]]
TEXT = "The first line.\nThe second one is longer than the first.\n\nThe end."


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    documented_files.write("minilm.gguf", folder)
    return folder / "minilm.gguf"


def test_passages_cover_the_text() -> None:
    passages = split_text(TEXT, "a", 15, "\n")
    second = "The second one is longer than the first.\n\nThe end."
    assert [each.text for each in passages] == ["The first line.\n", second]
    for size in range(1, 70):
        found = split_text(TEXT, "a", size, "\n")
        assert "".join(each.text for each in found).split() == TEXT.split()
        assert all(TEXT[each.position :].startswith(each.text) for each in found)
        assert all(len(each.text) > size for each in found) or len(found) == 1


def test_most_similar() -> None:
    embeddings = np.array([[1, 0], [0, 1], [0.8, 0.6]], np.float32)
    assert [index for index, _ in most_similar(np.array([0, 1], np.float32), embeddings, 2)] == [1, 2]


def test_retrieve(run: Run, encoder: Path, tmp_path: Path) -> None:
    """A query that is a passage finds it; the others follow in the order of their similarity."""
    (tmp_path / "a.txt").write_text("Dogs run.\nCats sleep.\n")
    (tmp_path / "b.txt").write_text("Rain falls.")
    files = ["--context-file", tmp_path / "a.txt", "--context-file", tmp_path / "b.txt", "--chunk-size", 5]
    code, out, _ = run("retrieve", encoder, *files, "-p", "Rain falls.", "-p", "Dogs run.\n", "--json", "--top-k", 2)
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["text"] for each in found[::2]] == ["Rain falls.", "Dogs run.\n"]
    assert [Path(each["file"]).name for each in found[::2]] == ["b.txt", "a.txt"]
    assert all(each["similarity"] == pytest.approx(1, abs=1e-4) for each in found[::2])
    with localinfer.load(encoder) as model:
        a, b = model.embed(["Rain falls.", found[1]["text"]])
    assert found[1]["similarity"] == pytest.approx(float(a @ b), abs=1e-4)


def test_long_passage(run: Run, encoder: Path, tmp_path: Path) -> None:
    """A passage that does not fit in the context is compared by its beginning."""
    (tmp_path / "a.txt").write_text("Dogs run. " * 500)
    code, out, err = run("retrieve", encoder, "--context-file", tmp_path / "a.txt", "-p", "Dogs run.")
    assert (code, out.count("\n")) == (0, 1)
    assert "its end is dropped" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--context-file: missing"),
        (["--context-file", "empty.txt"], "the files have no text"),
        (["--context-file", "empty.txt", "--chunk-separator", ""], "--chunk-separator: is empty"),
    ],
)
def test_mistakes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    code, out, err = run("retrieve", "model.gguf", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_help_shows_the_default_separator_once(run: Run) -> None:
    out = run("retrieve", "--help")[1]
    separator = out.partition("--chunk-separator TEXT")[2].partition("--top-k")[0]
    assert separator.count("default") == 1
    assert "newline" in separator
