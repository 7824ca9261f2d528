"""The output file contains only complete lines."""

import errno
import os
from pathlib import Path

import pytest
from windows_simulation import refuse_open_files

from localinfer.batch.output_file import LineSpan, OutputFile, open_output, size_of_whole_lines
from localinfer.errors import LocalInferError
from localinfer.gguf import file_descriptors

A, B, C = b"first\n", b"the second\n", b"3\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def filled(path: Path, *lines: bytes) -> list[LineSpan]:
    with open_output(path, restart=False) as output:
        for line in lines:
            output.append(line)
        return [offset for offset, _ in output.lines()]


def test_append(path: Path) -> None:
    assert filled(path, A, B) == [LineSpan(0, 6), LineSpan(6, 11)]
    assert filled(path, C) == [LineSpan(0, 6), LineSpan(6, 11), LineSpan(17, 2)]
    assert path.read_bytes() == A + B + C


@pytest.mark.parametrize("torn", range(len(B)))
def test_incomplete_line_is_truncated(path: Path, torn: int) -> None:
    path.write_bytes(A + B[:torn])
    with open_output(path, restart=False) as output:
        assert [line for _, line in output.lines()] == [A]
        assert path.read_bytes() == A + B[:torn], "it may be another program's"
        output.truncate()
        output.append(C)
    assert path.read_bytes() == A + C


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_last_newline_is_found_at_any_distance(path: Path, size: int) -> None:
    path.write_bytes(b"\n" * 3 + b"x" * size)
    with path.open("rb") as file:
        assert size_of_whole_lines(file.fileno()) == 3
    path.write_bytes(b"x" * size)
    with path.open("rb") as file:
        assert size_of_whole_lines(file.fileno()) == 0


def test_restart(path: Path) -> None:
    filled(path, A)
    with open_output(path, restart=True) as output:
        assert list(output.lines()) == []
    assert path.read_bytes() == b""


def test_rewrite(path: Path) -> None:
    first, second, third = filled(path, A, B, C)
    with open_output(path, restart=False) as output:
        node = path.stat().st_ino
        output.rewrite([first, second, third])
        assert path.stat().st_ino == node, "as it was"
        output.rewrite([third, first])
        output.append(B)
    assert path.read_bytes() == C + A + B
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the list of open files")
def test_rewrite_on_windows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can replace an open one there."""
    first, _, third = filled(path, A, B, C)
    monkeypatch.setattr(file_descriptors, "HOLDS_OPEN_FILES", True)
    monkeypatch.setattr(os, "replace", refuse_open_files(os.replace))
    with open_output(path, restart=False) as output:
        output.rewrite([third, first])
        output.append(B)
        with path.open("rb"), pytest.raises(LocalInferError, match="in use"):  # another program reads the file
            output.rewrite([LineSpan(0, 2)])
        output.append(A)
    assert path.read_bytes() == C + A + B + A


def test_open_in_another_process(path: Path) -> None:
    with open_output(path, restart=False), pytest.raises(LocalInferError, match="another process"):
        filled(path)


def test_full_disk_leaves_complete_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a disk that accepts part of a line; tests/cli/test_batch.py fills a real one."""
    write, free_bytes = os.write, [4, 0]

    def write_partially(descriptor: int, data: memoryview) -> int:
        if n_free := free_bytes.pop(0):
            return write(descriptor, data[:n_free])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_output(path, restart=False) as output:
        output.append(A)
        with monkeypatch.context() as full:
            full.setattr(os, "write", write_partially)
            with pytest.raises(LocalInferError, match=r"out\.jsonl: No space left on device$"):
                output.append(B)
        assert path.read_bytes() == A
        output.append(C)
    assert path.read_bytes() == A + C


def test_sync_of_the_first_line_and_after_one_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_output(path, restart=False) as output:
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        output.append(A)
        assert len(synced) == 1
        output.append(B)
        assert len(synced) == 1
        output._synced -= 1.0
        output.append(C)
        assert len(synced) == 2
        output.append(C)
        assert len(synced) == 2
    assert len(synced) == 3
    assert isinstance(output, OutputFile)
