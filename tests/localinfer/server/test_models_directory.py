"""The names of the models in a directory."""

from pathlib import Path

import pytest

from localinfer.errors import ModelNotFoundError, UsageError
from localinfer.server.models.models_directory import find_models

FILES = [
    "plain.gguf", "mmproj-plain.gguf", "notes.txt", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf",
    "alone/weights.gguf", "alone/mmproj.gguf", "several/a.gguf", "several/b.gguf", "OWNER/REPO/x-Q4_K_M.gguf",
    ".hidden/a.gguf", "parts/p-00001-of-00002.gguf", "parts/p-00002-of-00002.gguf", "a/b/c/deep.gguf",
]  # fmt: skip


def test_names(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "directory.gguf").mkdir()
    found = {each.name: each.path.relative_to(tmp_path).as_posix() for each in find_models(tmp_path)}
    assert found == {
        "plain": "plain.gguf", "big": "big-00001-of-00002.gguf", "alone": "alone/weights.gguf",
        "several/a": "several/a.gguf", "several/b": "several/b.gguf", "OWNER/REPO": "OWNER/REPO/x-Q4_K_M.gguf",
        "parts": "parts/p-00001-of-00002.gguf",
    }  # fmt: skip


def test_both_forms_of_a_model(tmp_path: Path) -> None:
    for name in ("m.gguf", "m-00001-of-00001.gguf"):
        (tmp_path / name).touch()
    assert [each.name for each in find_models(tmp_path)] == ["m", "m-00001-of-00001"]


def test_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: is not a directory"):
        find_models(tmp_path / "file")
    with pytest.raises(ModelNotFoundError, match="none: No such file"):
        find_models(tmp_path / "none")
