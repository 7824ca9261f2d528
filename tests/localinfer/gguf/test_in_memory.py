"""Models read into memory: identical bytes, progress, interruption and errors."""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from memory_maps import flags_at
from split_files import split
from tiny import tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.in_memory import READ_BYTES, STAGE, read_into_memory
from localinfer.gguf.reader import GGUF, open_gguf

PIECES = 20  # of the sparse model


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """Return a model with a large sparse tail, which takes no space on the disk."""
    path = tiny_llama(tmp_path / "sparse.gguf")
    os.truncate(path, PIECES * READ_BYTES - 5)
    return path


def assert_same(read: GGUF, mapped: GGUF) -> None:
    assert (read.in_memory, mapped.in_memory) == (True, False)
    assert (read.path, read.size, read.trailing_bytes) == (mapped.path, mapped.size, mapped.trailing_bytes)
    assert list(read.metadata) == list(mapped.metadata)
    assert list(read.tensors) == list(mapped.tensors)
    for name, tensor in read.tensors.items():
        assert np.array_equal(tensor.data, mapped.tensors[name].data)
        assert (tensor.shape, tensor.type, tensor.split_index) == (
            mapped.tensors[name].shape, mapped.tensors[name].type, mapped.tensors[name].split_index)  # fmt: skip
        assert not tensor.data.flags.writeable


@pytest.mark.parametrize("threads", [1, 3])
def test_same_bytes(tmp_path: Path, threads: int) -> None:
    mapped = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    assert_same(read_into_memory(mapped, threads), mapped)


def test_all_parts_of_a_split_model(tmp_path: Path) -> None:
    mapped = open_gguf(split(tiny_llama(tmp_path / "m.gguf"), 7)[1])
    reports: list[int] = []
    read = read_into_memory(mapped, 2, lambda stage, done, total: reports.append(done))
    assert_same(read, mapped)
    assert [file.path for file in read.files] == [file.path for file in mapped.files]
    assert reports == np.cumsum([file.size for file in mapped.files]).tolist()


def test_without_preadv(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = open_gguf(sparse)
    monkeypatch.delattr(os, "preadv", raising=False)
    assert_same(read_into_memory(mapped, 2), mapped)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_huge_pages_are_requested(sparse: Path) -> None:
    read = read_into_memory(open_gguf(sparse), 2)
    flags = flags_at(read.files[0].bytes.ctypes.data)
    assert "sh" not in flags  # shared memory would not get huge pages
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_reports_progress(sparse: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    read_into_memory(open_gguf(sparse), 2, lambda *stage: reports.append(stage))
    size = sparse.stat().st_size
    assert reports == [(STAGE, min(piece * READ_BYTES, size), size) for piece in range(1, PIECES + 1)]


def test_later_changes_have_no_effect(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    read, content = read_into_memory(open_gguf(path), 1), path.read_bytes()
    path.write_bytes(b"something else")
    read.check_unchanged()
    assert read.files[0].bytes.tobytes() == content
    assert read.files[0].window(4, 8).tobytes() == content[4:12]


@pytest.mark.parametrize("change", ["shorter", "longer", "overwritten"])
def test_file_changes_while_reading(sparse: Path, change: str) -> None:
    def progress(stage: str, done: int, total: int) -> None:
        if change == "overwritten":
            with sparse.open("r+b") as file:
                file.write(b"x")
        else:
            os.truncate(sparse, 2 * READ_BYTES if change == "shorter" else total + 1)

    mapped = open_gguf(sparse)
    with pytest.raises(LocalInferError) as error:
        read_into_memory(mapped, 1, progress)
    assert str(error.value) == f"{sparse}: file changed or truncated while in use"


def test_ctrl_c_stops_immediately(sparse: Path) -> None:
    reports: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        reports.append(done)
        raise KeyboardInterrupt

    mapped, threads = open_gguf(sparse), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_into_memory(mapped, 2, progress)
    assert reports == [READ_BYTES]
    assert threading.active_count() == threads


def test_unreadable_file(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, os.strerror(5))

    mapped = open_gguf(sparse)
    monkeypatch.setattr(os, "preadv", broken, raising=False)
    with pytest.raises(LocalInferError) as error:
        read_into_memory(mapped, 2)
    assert str(error.value) == f"{sparse}: cannot be read: {os.strerror(5)}"
