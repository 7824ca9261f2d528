"""Lines that are there as a whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from localinfer.batch.output import Output, Place, opened, size_of_whole_lines
from localinfer.errors import LocalInferError

A, B, C = b"first\n", b"the second\n", b"3\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def filled(path: Path, *lines: bytes) -> list[Place]:
    with opened(path, restart=False) as output:
        for line in lines:
            output.append(line)
        return [place for place, _ in output.lines()]


def test_appended(path: Path) -> None:
    assert filled(path, A, B) == [Place(0, 6), Place(6, 11)]
    assert filled(path, C) == [Place(0, 6), Place(6, 11), Place(17, 2)]
    assert path.read_bytes() == A + B + C


@pytest.mark.parametrize("torn", range(len(B)))
def test_a_line_without_its_end_is_cut_off(path: Path, torn: int) -> None:
    path.write_bytes(A + B[:torn])
    with opened(path, restart=False) as output:
        assert [line for _, line in output.lines()] == [A]
        assert path.read_bytes() == A + B[:torn], "it may be another program's"
        output.cut()
        output.append(C)
    assert path.read_bytes() == A + C


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_last_end_of_a_line_is_found_however_far_away(path: Path, size: int) -> None:
    path.write_bytes(b"\n" * 3 + b"x" * size)
    with path.open("rb") as file:
        assert size_of_whole_lines(file.fileno()) == 3
    path.write_bytes(b"x" * size)
    with path.open("rb") as file:
        assert size_of_whole_lines(file.fileno()) == 0


def test_restart(path: Path) -> None:
    filled(path, A)
    with opened(path, restart=True) as output:
        assert list(output.lines()) == []
    assert path.read_bytes() == b""


def test_rewritten(path: Path) -> None:
    first, second, third = filled(path, A, B, C)
    with opened(path, restart=False) as output:
        node = path.stat().st_ino
        output.rewrite([first, second, third])
        assert path.stat().st_ino == node, "as it was"
        output.rewrite([third, first])
        output.append(B)
    assert path.read_bytes() == C + A + B
    assert list(path.parent.iterdir()) == [path]


def test_another_process_has_it(path: Path) -> None:
    with opened(path, restart=False), pytest.raises(LocalInferError, match="another process"):
        filled(path)


def test_a_full_disk_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a part of the line; tests/cli/test_batch.py fills one for real."""
    write, rooms = os.write, [4, 0]

    def write_a_part(descriptor: int, data: memoryview) -> int:
        if room := rooms.pop(0):
            return write(descriptor, data[:room])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(path, restart=False) as output:
        output.append(A)
        with monkeypatch.context() as full:
            full.setattr(os, "write", write_a_part)
            with pytest.raises(LocalInferError, match=r"out\.jsonl: No space left on device$"):
                output.append(B)
        assert path.read_bytes() == A
        output.append(C)
    assert path.read_bytes() == A + C


def test_on_the_disk_after_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with opened(path, restart=False) as output:
        output.append(A)
        assert synced == []
        output._synced -= 1.0
        output.append(B)
        assert len(synced) == 1
        output.append(C)
        assert len(synced) == 1
    assert len(synced) == 2
    assert isinstance(output, Output)
