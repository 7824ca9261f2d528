"""Resumable files: saved progress survives every interruption; an error leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from locations import CHECKOUT
from windows_simulation import refuse_open_files

from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf import file_descriptors
from localinfer.gguf.resumable_file import ResumableFile, resumable_file

IDENTITY = {"source": "a", "text": "b"}
STEPS = 4


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def go(path: Path, *, until: int = STEPS, error: BaseException | None = None, **identity: str) -> ResumableFile:
    """Write one byte per step, and raise the error after `until` steps."""
    with resumable_file(path, STEPS, IDENTITY | identity, replace=False) as file:
        for step in range(file.steps_done, until):
            file.file.write_at(step, bytes([65 + step]))
            file.save_progress(step + 1)
        if error:
            raise error
    return file


def test_single_run(tmp_path: Path) -> None:
    go(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"ABCD"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_continues_after_saved_progress(tmp_path: Path, interruption: type[BaseException]) -> None:
    with pytest.raises(interruption):
        go(tmp_path / "out", until=2, error=interruption())
    assert names(tmp_path) == [".out.unfinished", ".out.unfinished.json"]
    with resumable_file(tmp_path / "out", STEPS, IDENTITY, replace=False) as file:
        assert (file.steps_done, file.discard_reason) == (2, "")
        file.file.write_at(2, b"cd")
    assert (tmp_path / "out").read_bytes() == b"ABcd"
    assert names(tmp_path) == ["out"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the list of open files")
def test_windows_neither_renames_nor_deletes_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_descriptors, "HOLDS_OPEN_FILES", True)
    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, refuse_open_files(getattr(os, name)))
    go(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"ABCD"
    with pytest.raises(LocalInferError, match="bad"):
        go(tmp_path / "other", until=2, error=LocalInferError("bad"))
    assert names(tmp_path) == ["out"]


def test_interruption_without_progress_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", until=0, error=KeyboardInterrupt())
    assert names(tmp_path) == []


def test_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LocalInferError):
        go(tmp_path / "out", until=2, error=LocalInferError("bad"))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"text": "c"}, "it has another text"), ({"text": "c", "source": "d"}, "it has another source and another text")],
)
def test_other_identity_is_discarded(tmp_path: Path, changed: dict[str, str], why: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", until=2, error=KeyboardInterrupt())
    assert go(tmp_path / "out", **changed).discard_reason == why
    assert (tmp_path / "out").read_bytes() == b"ABCD"


@pytest.mark.parametrize(
    "notes", [b"", b"[]", b"\xff", b'{"identity": 5, "done": 1}', b'{"identity": {"source": "a", "text": "b"}}']
)
def test_damaged_progress_is_discarded(tmp_path: Path, notes: bytes) -> None:
    (tmp_path / ".out.unfinished").write_bytes(b"wxyz")
    (tmp_path / ".out.unfinished.json").write_bytes(notes)
    actual = go(tmp_path / "out", until=0)
    assert actual.discard_reason
    assert (tmp_path / "out").read_bytes() == bytes(STEPS)


def test_existing_path(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(UsageError, match="--force"):
        go(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_two_processes_at_once(tmp_path: Path) -> None:
    with resumable_file(tmp_path / "out", STEPS, IDENTITY, replace=False) as file:
        file.file.write_at(0, b"ABCD")
        with pytest.raises(LocalInferError, match="another process is writing it"):
            go(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"ABCD"


def test_survives_being_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path\n"
        "from localinfer.gguf.resumable_file import resumable_file\n"
        f"with resumable_file(Path({str(tmp_path / 'out')!r}), {STEPS}, {IDENTITY!r}, replace=False) as file:\n"
        "    file.file.write_at(0, b'A'); file.save_progress(1); file.file.write_at(1, b'?'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, env=dict(os.environ), check=False)
    assert go(tmp_path / "out").steps_done == STEPS
    assert (tmp_path / "out").read_bytes() == b"ABCD"
