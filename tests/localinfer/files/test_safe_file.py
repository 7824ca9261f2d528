"""A file is there whole or not at all: whatever fails, whenever the process is killed."""

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
from localinfer.files import safe_file
from localinfer.files.safe_file import appearing

OLD, NEW = b"old" * 10, b"new" * 1000
CALLS = ("open", "truncate", "pwrite", "fsync", "replace")


def write_new(path: Path) -> None:
    """A file in three writes, the last part first."""
    with appearing({path: len(NEW)}, replace=True) as [file]:
        for start in (2000, 0, 1000):
            file.write_at(start, NEW[start : start + 1000])


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


class Shim:
    """Stands for the system: notes its calls, and has the N-th fail, or all from the N-th on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: int = 0, persistent: bool = False) -> None:
        self.log: list[str] = []
        self.fail, self.persistent = fail, persistent
        for name in CALLS:
            monkeypatch.setattr(safe_file.os, name, self.watched(name, getattr(os, name)))

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


def test_what_is_not_written_is_zeros(tmp_path: Path) -> None:
    with appearing({tmp_path / "model": 8}, replace=False) as [file]:
        file.write_at(4, b"x")
    assert (tmp_path / "model").read_bytes() == b"\0\0\0\0x\0\0\0"


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = Shim(monkeypatch)
    write_new(tmp_path / "model")
    assert shim.log == ["open", "truncate", *["pwrite"] * 3, "fsync", "replace", "open", "fsync"]


def outcome(path: Path) -> str:
    """What went wrong in writing the new content, if anything."""
    try:
        write_new(path)
    except LocalInferError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("persistent", [False, True])
def test_whatever_call_fails(tmp_path: Path, persistent: bool) -> None:
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
from localinfer.files import safe_file

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
with safe_file.appearing({{Path(sys.argv[1]): 3000}}, replace=True) as [file]:
    for start in (2000, 0, 1000):
        file.write_at(start, b"new" * 333 + b"n")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_at_any_call(tmp_path: Path, environment: dict[str, str]) -> None:
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


def test_another_process_at_work_is_left_alone(tmp_path: Path) -> None:
    others = tmp_path / f".model.tmp-{os.getppid()}"
    others.touch()
    write_new(tmp_path / "model")
    assert others.exists()


def test_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(OLD)

    def write_half() -> None:
        with appearing({path: 3}, replace=True) as [file]:
            file.write_at(0, b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("last", ["open", "truncate", "pwrite", "fsync"])
def test_interrupted_right_behind_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """Even behind that which made the file, before anything else knows of it."""
    path, call = tmp_path / "model", getattr(os, last)
    path.write_bytes(OLD)

    def and_interrupt(*arguments: Any) -> None:
        call(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(safe_file.os, last, and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_new(path)
    assert path.read_bytes() == OLD
    assert names(tmp_path) == ["model"]


def test_directory_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def write_too_late() -> None:
        with appearing({folder / "model": 1}, replace=False):
            shutil.rmtree(folder)

    with pytest.raises(LocalInferError, match=f"^{folder}/model: cannot be written: No such file"):
        write_too_late()


def test_several_appear_together(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    with appearing({one: 1, two: 1}, replace=False) as files:
        for file in files:
            file.write_at(0, b"x")
        assert not one.exists()
    assert names(tmp_path) == ["1", "2"]


class TestRefusedBeforehand:
    def test_file_that_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "model"
        path.write_bytes(OLD)
        with pytest.raises(UsageError, match=f"^{path}: is there already; --force"):
            self.enter(path)
        assert path.read_bytes() == OLD

    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is no file"):
            self.enter(tmp_path, replace=True)

    def test_directory_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there is no directory"):
            self.enter(tmp_path / "no" / "model")

    def test_file_in_place_of_the_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="there is no directory"):
            self.enter(tmp_path / "file" / "model")

    @pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
    def test_name_that_cannot_be(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(LocalInferError):
            self.enter(tmp_path / name)

    def test_disk_that_is_too_full(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match=f"^{tmp_path}: 1,152,921,504,606,846,976 bytes are needed"):
            self.enter(tmp_path / "model", 1 << 60)
        assert names(tmp_path) == []

    def enter(self, path: Path, size: int = 1, *, replace: bool = False) -> None:
        with appearing({path: size}, replace=replace):
            pytest.fail("the work began")
