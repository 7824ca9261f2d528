"""Files that appear whole or not at all, however large: written beside their place, made to last, then renamed.

    with appearing({path: size}, replace=False) as [file]:
        file.write_at(0, header)        # from any thread, in any order

When the block ends well, the bytes are on the disk before the name is, and the name before this returns. When it does
not, or the process is told to end, nothing is left; when it is killed, `.NAME.tmp-PID`, which the next one removes.
Knows nothing of what is written. Raises LocalInferError with `<path>: <what is wrong>`.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.text import printable

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
PIECE = 1 << 30  # bytes that are written at once: some systems take no more than 2 GiB


@dataclass(frozen=True, slots=True)
class SafeFile:
    """A file in the making, of a size that is known."""

    path: Path
    temporary: Path
    size: int
    descriptor: int

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes; of an array, its `data`."""
        rest = memoryview(data).cast("B")
        with told_of(self.path, self.size):
            while rest:
                written = os.pwrite(self.descriptor, rest[:PIECE], offset)
                rest, offset = rest[written:], offset + written


def shown(path: Path) -> str:
    return printable(str(path))


@contextmanager
def told_of(path: Path, size: int) -> Iterator[None]:
    """What the system refuses becomes one line about a file of this size."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        problem = getattr(error, "strerror", None) or error
        raise LocalInferError(f"{shown(path)}: cannot be written: {problem} ({size:,} bytes in all)") from None


@contextmanager
def appearing(sizes: Mapping[Path, int], *, replace: bool, mode: int = 0o666) -> Iterator[list[SafeFile]]:
    """Files of these sizes, which all appear when the block ends. They start as zeros.

    A file that is there must be meant to be replaced; it stays until then. `mode` is who may read and write them, less
    what the process denies to all that it makes.
    """
    for path in sizes:
        require_free_name(path, replace)
    require_space(sizes)
    files: list[SafeFile] = []
    try:
        for path, size in sizes.items():
            remove_leftovers(path)
            files.append(begun(path, size, mode))
        yield files
        for file in files:
            with told_of(file.path, file.size):
                os.fsync(file.descriptor)
        for file in files:
            with told_of(file.path, file.size):
                os.replace(file.temporary, file.path)  # noqa: PTH105
        for folder in {path.parent for path in sizes}:
            with told_of(folder, sum(sizes.values())):
                sync_names(folder)
    finally:
        for file in files:
            os.close(file.descriptor)
        for path in sizes:  # one that was just begun, when the process was told to end, is not among the files
            with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL in the name
                temporary_of(path).unlink()


def require_free_name(path: Path, replace: bool) -> None:
    """Refuse a place where no file can appear, before there is any work in it."""
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"{shown(path)}: is there, and is no file")
        if path.exists() and not replace:
            raise UsageError(f"{shown(path)}: is there already; --force replaces it")
        if not path.parent.is_dir():
            raise UsageError(f"{shown(path)}: there is no directory {shown(path.parent)}")
    except (OSError, ValueError) as error:  # a name too long, a NUL inside
        problem = getattr(error, "strerror", None) or "cannot be the name of a file"
        raise UsageError(f"{shown(path)}: {problem}") from None


def require_space(sizes: Mapping[Path, int]) -> None:
    """All of them need to fit beside what is there now."""
    needed = sum(sizes.values())
    folder = next(iter(sizes)).parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalInferError(f"{shown(folder)}: {needed:,} bytes are needed, {free:,} are free")


def remove_leftovers(path: Path) -> None:
    """What is left of processes that were killed while they wrote this file."""
    pattern = re.compile(re.escape(f".{path.name}.tmp-") + r"(\d+)")
    for leftover in path.parent.iterdir():
        found = pattern.fullmatch(leftover.name)
        if found and not is_at_work(int(found[1])):
            with contextlib.suppress(OSError):
                leftover.unlink()


def is_at_work(process: int) -> bool:
    """Whether it is there and another than this one."""
    import psutil  # takes 8 ms, and there is hardly ever anything left

    return process != os.getpid() and bool(psutil.pid_exists(process))


def temporary_of(path: Path) -> Path:
    """Where a file is while it is not whole."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def begun(path: Path, size: int, mode: int) -> SafeFile:
    """The unfinished file: where nobody may write, this is where it shows."""
    temporary = temporary_of(path)
    with told_of(path, size):
        descriptor = os.open(temporary, NEW, mode)
        try:
            os.truncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
    return SafeFile(path, temporary, size, descriptor)


def sync_names(folder: Path) -> None:
    """Make what was renamed last through a power failure, where the system lets a directory be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
