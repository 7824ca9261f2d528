"""Splitting a model into several files and joining them, compared with files written by the `gguf` package."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import split_files
import tiny

from cli.models.gguf_split import parse_size
from localinfer.errors import UsageError
from localinfer.gguf.reader import open_gguf

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.tiny_llama(tmp_path / "model.gguf")


@pytest.mark.parametrize("bare_first", [False, True])
@pytest.mark.parametrize("per_file", [1, 7, 1000])
def test_split_by_tensors_and_merge(run: Run, model: Path, tmp_path: Path, per_file: int, bare_first: bool) -> None:
    """The files are those of llama.cpp, byte for byte, and joined they are the model again."""
    expected = [path.read_bytes() for path in split_files.split(model, per_file, bare_first=bare_first)]
    options = ["--no-tensor-first-split"] if bare_first else []
    assert run("gguf-split", *options, "--split-max-tensors", per_file, model, tmp_path / "out")[0] == 0
    paths = sorted(tmp_path.glob("out-*.gguf"))
    assert [path.read_bytes() for path in paths] == expected
    assert run("gguf-split", "--merge", paths[-1], tmp_path / "merged.gguf")[0] == 0
    assert (tmp_path / "merged.gguf").read_bytes() == model.read_bytes()


def test_split_by_size(run: Run, model: Path, tmp_path: Path) -> None:
    limit = 300_000
    code, out, _ = run("gguf-split", "--split-max-size", "300K", model, tmp_path / "out.gguf", "--dry-run")
    assert (code, len(list(tmp_path.iterdir()))) == (0, 1)
    assert run("gguf-split", "--split", "--split-max-size", "300K", model, tmp_path / "out.gguf")[0] == 0
    paths = sorted(tmp_path.glob("out-*.gguf"))
    assert [line.partition(": ")[0] for line in out.splitlines()] == [*map(str, paths)]
    whole = open_gguf(paths[0])
    assert list(whole.tensors) == list(open_gguf(model).tensors)
    sizes = [[tensor.nbytes for tensor in whole.tensors.values() if tensor.split_index == n] for n in range(len(paths))]
    assert len(sizes) > 1
    assert all(sum(each) <= limit or len(each) == 1 for each in sizes)
    assert all(sum(each) + after[0] > limit for each, after in pairwise(sizes))


def test_delete_splits(run: Run, model: Path, tmp_path: Path) -> None:
    paths = split_files.split(model, 7)
    merged = tmp_path / "merged.gguf"
    assert run("gguf-split", "--merge", "--delete-splits", "--dry-run", paths[0], merged)[0] == 0
    assert all(path.exists() for path in paths)
    assert run("gguf-split", "--merge", "--delete-splits", paths[0], merged)[0] == 0
    assert sorted(tmp_path.iterdir()) == [merged, model]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--merge", "--split"], "--merge: cannot be combined with the options of a split"),
        (["--merge", "--split-max-size", "5M"], "--merge: cannot be combined"),
        (["--split-max-size", "5M", "--split-max-tensors", "5"], "cannot be combined"),
        (["--split-max-size", "5X"], "--split-max-size: must be a number with K, M or G"),
        (["--delete-splits"], "--delete-splits: requires --merge"),
        (["--merge"], "is there already"),
    ],
)
def test_usage_errors(run: Run, model: Path, tmp_path: Path, options: list[str], problem: str) -> None:
    (tmp_path / "out.gguf").touch()
    code, _, err = run("gguf-split", *options, model, tmp_path / "out.gguf")
    assert code == 2
    assert problem in err


def test_output_is_never_the_input(run: Run, model: Path) -> None:
    before = model.read_bytes()
    code, _, err = run("gguf-split", "--merge", "--force", model, model)
    assert (code, "is the input file" in err, model.read_bytes() == before) == (2, True, True)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("500M", "2g", "7")] == [500_000_000, 2_000_000_000, 7]
    with pytest.raises(UsageError):
        parse_size("0M")
