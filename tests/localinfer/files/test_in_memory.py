"""Models that are read into memory: the same bytes, and what may happen on the way."""

import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from splits import split
from tiny import tiny_llama

from localinfer.errors import LocalInferError
from localinfer.files.gguf import GGUF, open_gguf
from localinfer.files.in_memory import PIECE, STAGE, read_into_memory

PIECES = 20  # of the sparse model


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A model with a long tail of nothing, which takes no room on the disk."""
    path = tiny_llama(tmp_path / "sparse.gguf")
    os.truncate(path, PIECES * PIECE - 5)
    return path


def assert_same(read: GGUF, mapped: GGUF) -> None:
    assert (read.in_memory, mapped.in_memory) == (True, False)
    assert (read.path, read.size, read.trailing) == (mapped.path, mapped.size, mapped.trailing)
    assert list(read.metadata) == list(mapped.metadata)
    assert list(read.tensors) == list(mapped.tensors)
    for name, tensor in read.tensors.items():
        assert np.array_equal(tensor.data, mapped.tensors[name].data)
        assert (tensor.shape, tensor.type, tensor.part) == (
            mapped.tensors[name].shape, mapped.tensors[name].type, mapped.tensors[name].part)  # fmt: skip
        assert not tensor.data.flags.writeable


@pytest.mark.parametrize("threads", [1, 3])
def test_same_bytes(tmp_path: Path, threads: int) -> None:
    mapped = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    assert_same(read_into_memory(mapped, threads), mapped)


def test_all_parts_of_a_split_model(tmp_path: Path) -> None:
    mapped = open_gguf(split(tiny_llama(tmp_path / "m.gguf"), 7)[1])
    told: list[int] = []
    read = read_into_memory(mapped, 2, lambda stage, done, total: told.append(done))
    assert_same(read, mapped)
    assert [file.path for file in read.files] == [file.path for file in mapped.files]
    assert told == np.cumsum([file.size for file in mapped.files]).tolist()


def test_where_the_system_reads_at_one_place_only(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = open_gguf(sparse)
    monkeypatch.delattr(os, "preadv", raising=False)
    assert_same(read_into_memory(mapped, 2), mapped)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_huge_pages_are_asked_for(sparse: Path) -> None:
    read = read_into_memory(open_gguf(sparse), 2)
    flags = flags_at(read.files[0].bytes.ctypes.data)
    assert "sh" not in flags  # of shared memory there would be none
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def flags_at(address: int) -> list[str]:
    """What Linux notes of the mapping that an address is in."""
    found = re.findall(r"(?ms)^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: (.*?)$", Path("/proc/self/smaps").read_text())
    return next(flags.split() for low, high, flags in found if int(low, 16) <= address < int(high, 16))


def test_tells_how_far_it_is(sparse: Path) -> None:
    told: list[tuple[str, int, int]] = []
    read_into_memory(open_gguf(sparse), 2, lambda *stage: told.append(stage))
    size = sparse.stat().st_size
    assert told == [(STAGE, min(piece * PIECE, size), size) for piece in range(1, PIECES + 1)]


def test_what_becomes_of_the_file_makes_no_difference(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    read, content = read_into_memory(open_gguf(path), 1), path.read_bytes()
    path.write_bytes(b"something else")
    read.check_unchanged()
    assert read.files[0].bytes.tobytes() == content
    assert read.files[0].window(4, 8).tobytes() == content[4:12]


@pytest.mark.parametrize("change", ["shorter", "longer", "overwritten"])
def test_a_file_that_changes_while_it_is_read(sparse: Path, change: str) -> None:
    def progress(stage: str, done: int, total: int) -> None:
        if change == "overwritten":
            with sparse.open("r+b") as file:
                file.write(b"x")
        else:
            os.truncate(sparse, 2 * PIECE if change == "shorter" else total + 1)

    mapped = open_gguf(sparse)
    with pytest.raises(LocalInferError) as error:
        read_into_memory(mapped, 1, progress)
    assert str(error.value) == f"{sparse}: file changed or truncated while in use"


def test_ctrl_c_ends_it_at_once(sparse: Path) -> None:
    told: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        told.append(done)
        raise KeyboardInterrupt

    mapped, threads = open_gguf(sparse), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_into_memory(mapped, 2, progress)
    assert told == [PIECE]
    assert threading.active_count() == threads


def test_a_file_that_cannot_be_read(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, os.strerror(5))

    mapped = open_gguf(sparse)
    monkeypatch.setattr(os, "preadv", broken, raising=False)
    with pytest.raises(LocalInferError) as error:
        read_into_memory(mapped, 2)
    assert str(error.value) == f"{sparse}: cannot be read: {os.strerror(5)}"
