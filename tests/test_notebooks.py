"""The notebooks of the documentation run with SmolLM2, or where it cannot be had with a tiny model in its place."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_llama

from localinfer.errors import LocalInferError
from localinfer.hub import pull

pytest.importorskip("ipykernel")
notebooks = pytest.importorskip("notebooks")

FOUND = {  # what a notebook finds out about SmolLM2
    "steer-a-model": r"\+1  I went to the restaurant and .*great",
    "what-quantization-changed": r"perplexity (\d+\.\d+) -> (?!\1)\d+\.\d+",
    "where-an-answer-is-decided": r"layer 23\n(.|\n)*head 4: \+0\.[89]\d   <- this one",
}


def texts(book: Any) -> str:
    """Return what the cells of a notebook print."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    try:
        pull.pull("smollm2")
    except LocalInferError:
        model = tiny_llama(tmp_path / "smollm2.gguf", n_ctx=512)
        (tmp_path / "models.toml").write_text(f"[models.smollm2]\npath = '{model}'\n")
        notebooks.executed(path, LOCALINFER_CONFIG_DIR=str(tmp_path))
    else:
        assert re.search(FOUND[path.stem], texts(notebooks.executed(path)))


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path: Path) -> None:
    """They are small, and none is an error."""
    import nbformat

    book = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 100_000
    assert re.search(FOUND[path.stem], texts(book))
    assert not any(output.output_type == "error" for cell in book.cells for output in cell.get("outputs", []))
