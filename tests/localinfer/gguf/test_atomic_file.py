"""Atomic files appear completely or not at all: with every system call failing, and killed at every call."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf import atomic_file
from localinfer.gguf.atomic_file import atomic_files

OLD, NEW = b"old" * 10, b"new" * 1000
CALLS = ("open", "ftruncate", "pwrite", "fsync", "replace")


def write_new(path: Path) -> None:
    """Write the new content with three calls, the last part first."""
    with atomic_files({path: len(NEW)}, replace=True) as [file]:
        for start in (2000, 0, 1000):
            file.write_at(start, NEW[start : start + 1000])


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


class Shim:
    """Records system calls and lets the `fail`-th one fail; if persistent, all later ones too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: int = 0, persistent: bool = False) -> None:
        self.log: list[str] = []
        self.fail, self.persistent = fail, persistent
        for name in CALLS:
            monkeypatch.setattr(atomic_file.os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any) -> Any:
            self.log.append(name)
            if len(self.log) == self.fail or (self.persistent and len(self.log) > self.fail > 0):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments)

        return instead


def test_content(tmp_path: Path) -> None:
    write_new(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == NEW
    assert names(tmp_path) == ["model"]


def test_unwritten_bytes_are_zero(tmp_path: Path) -> None:
    with atomic_files({tmp_path / "model": 8}, replace=False) as [file]:
        file.write_at(4, b"x")
    assert (tmp_path / "model").read_bytes() == b"\0\0\0\0x\0\0\0"


def test_data_is_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = Shim(monkeypatch)
    write_new(tmp_path / "model")
    assert shim.log == ["open", "ftruncate", *["pwrite"] * 3, "fsync", "replace", "open", "fsync"]


def outcome(path: Path) -> str:
    """Return the error of writing the new content, or an empty string."""
    try:
        write_new(path)
    except LocalInferError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("persistent", [False, True])
def test_every_failing_call(tmp_path: Path, persistent: bool) -> None:
    path = tmp_path / "model"
    for fail in range(1, 100):
        path.write_bytes(OLD)
        with pytest.MonkeyPatch.context() as monkeypatch:
            shim = Shim(monkeypatch, fail, persistent)
            problem = outcome(path)
        assert not problem or re.match(f"{tmp_path}.*: cannot be written: No space left on device", problem)
        assert path.read_bytes() in (OLD, NEW)
        assert names(tmp_path) == ["model"]
        if len(shim.log) < fail:
            break
    assert fail == 10, "nine calls can fail"
    assert path.read_bytes() == NEW


DRIVER = f"""
import os, signal, sys
from pathlib import Path
from localinfer.gguf import atomic_file

left = int(sys.argv[2])

def watched(call):
    def instead(*arguments):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return instead

for name in {CALLS}:
    setattr(os, name, watched(getattr(os, name)))
with atomic_file.atomic_files({{Path(sys.argv[1]): 3000}}, replace=True) as [file]:
    for start in (2000, 0, 1000):
        file.write_at(start, b"new" * 333 + b"n")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_at_every_call(tmp_path: Path, environment: dict[str, str]) -> None:
    path = tmp_path / "model"
    path.write_bytes(OLD)
    for at in (2, 4, 6, 7, 8):
        process = subprocess.run([sys.executable, "-c", DRIVER, str(path), str(at)], env=environment, check=False)
        assert process.returncode == -signal.SIGKILL
        assert path.read_bytes() == OLD if at < 8 else len(path.read_bytes()) == 3000
        assert all(name == "model" or name.startswith(".model.tmp-") for name in names(tmp_path))
    write_new(path)
    assert path.read_bytes() == NEW
    assert names(tmp_path) == ["model"]


def test_temporary_file_of_running_process_is_kept(tmp_path: Path) -> None:
    others = tmp_path / f".model.tmp-{os.getppid()}"
    others.touch()
    write_new(tmp_path / "model")
    assert others.exists()


def test_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(OLD)

    def write_half() -> None:
        with atomic_files({path: 3}, replace=True) as [file]:
            file.write_at(0, b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("last", ["open", "ftruncate", "pwrite", "fsync"])
def test_interrupted_right_after_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """Also right after the call that created the file, before its name is stored."""
    path, call = tmp_path / "model", getattr(os, last)
    path.write_bytes(OLD)

    def and_interrupt(*arguments: Any) -> None:
        call(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_file.os, last, and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_new(path)
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["model"]


def test_directory_disappears(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def write_too_late() -> None:
        with atomic_files({folder / "model": 1}, replace=False):
            shutil.rmtree(folder)

    with pytest.raises(LocalInferError, match=f"^{folder}/model: cannot be written: No such file"):
        write_too_late()


def test_several_files_appear_together(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    with atomic_files({one: 1, two: 1}, replace=False) as files:
        for file in files:
            file.write_at(0, b"x")
        assert not one.exists()
    assert names(tmp_path) == ["1", "2"]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    first, second = tmp_path / "model-1", tmp_path / "model-2"

    def write_both() -> None:
        with atomic_files({first: 1, second: 1}, replace=False) as files:
            for file in files:
                file.write_at(0, b"n")
            second.write_bytes(OLD)

    with pytest.raises(LocalInferError, match="model-2: is there already") as error:
        write_both()
    folder = Path(str(error.value).rpartition("the result is in ")[2])
    assert (second.read_bytes(), names(tmp_path)) == (OLD, [folder.name, "model-2"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"model-1": b"n", "model-2": b"n"}


class TestErrorsBeforeWriting:
    def test_existing_file(self, tmp_path: Path) -> None:
        path = tmp_path / "model"
        path.write_bytes(OLD)
        with pytest.raises(UsageError, match=f"^{path}: is there already; force"):
            self.enter(path)
        assert path.read_bytes() == OLD

    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is no file"):
            self.enter(tmp_path, replace=True)

    def test_missing_directory(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there is no directory"):
            self.enter(tmp_path / "no" / "model")

    def test_directory_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="there is no directory"):
            self.enter(tmp_path / "file" / "model")

    @pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
    def test_invalid_name(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(LocalInferError):
            self.enter(tmp_path / name)

    def test_disk_too_full(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match=f"^{tmp_path}: 1,152,921,504,606,846,976 bytes are needed"):
            self.enter(tmp_path / "model", 1 << 60)
        assert names(tmp_path) == []

    def enter(self, path: Path, size: int = 1, *, replace: bool = False) -> None:
        with atomic_files({path: size}, replace=replace):
            pytest.fail("the work began")
