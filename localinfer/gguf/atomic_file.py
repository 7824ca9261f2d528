"""Atomic files: written to a temporary file in the target's directory, synced to disk, then renamed.

    with atomic_files({path: size}, replace=False) as [file]:
        file.write_at(0, header)        # from any thread, in any order

When the block succeeds, the bytes are on disk before the rename, and the rename is on disk before the block returns.
When it fails or the process receives a termination signal, nothing is left. When the process is killed,
`.NAME.tmp-PID` remains; the next writer of the same file removes it. If another process has created one of the files
meanwhile, they appear in a new folder, which an error names, so that hours of work are not lost.
Raises LocalInferError with `<path>: <what is wrong>`.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.gguf import file_descriptors
from localinfer.gguf.huge_pages import drop_small_pages

CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
MAX_WRITE = 1 << 30  # bytes per write call; some systems accept at most 2 GiB


@dataclass(frozen=True, slots=True)
class AtomicFile:
    """A temporary file of known size that becomes `path` when it is complete."""

    path: Path
    temporary: Path
    size: int
    descriptor: int

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at an offset; for an array, pass its `data`."""
        rest = memoryview(data).cast("B")
        with raise_write_errors(self.path, self.size):
            while rest:
                written = file_descriptors.write_at(self.descriptor, rest[:MAX_WRITE], offset)
                rest, offset = rest[written:], offset + written


def display_path(path: Path) -> str:
    """Return a path for messages, without control characters."""
    return printable(str(path))


@contextmanager
def raise_write_errors(path: Path, size: int) -> Iterator[None]:
    """Convert OS errors to a one-line LocalInferError about a file of this size."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        problem = getattr(error, "strerror", None) or error
        raise LocalInferError(f"{display_path(path)}: cannot be written: {problem} ({size:,} bytes in all)") from None


@contextmanager
def atomic_files(sizes: Mapping[Path, int], *, replace: bool, mode: int = 0o666) -> Iterator[list[AtomicFile]]:
    """Create files of these sizes, filled with zeros, which all appear when the block ends.

    An existing file stays until then and needs `replace=True`. `mode` is the permission bits before the umask.
    """
    for path in sizes:
        require_writable_path(path, replace)
    require_space(sizes)
    files: list[AtomicFile] = []
    try:
        with contextlib.ExitStack() as descriptors:
            for path, size in sizes.items():
                remove_leftovers(path)
                files.append(create_temporary(path, size, mode))
                descriptors.callback(os.close, files[-1].descriptor)
            yield files
            for file in files:
                with raise_write_errors(file.path, file.size):
                    os.fsync(file.descriptor)
                    drop_small_pages(file.descriptor)
        if not replace and (taken := next((file.path for file in files if file.path.exists()), None)):
            folder = move_to_new_folder(files)
            problem = "is there already, written by another process meanwhile; the result is in"
            raise LocalInferError(f"{display_path(taken)}: {problem} {display_path(folder)}")
        for file in files:
            with raise_write_errors(file.path, file.size):
                os.replace(file.temporary, file.path)  # noqa: PTH105
        for folder in {path.parent for path in sizes}:
            with raise_write_errors(folder, sum(sizes.values())):
                sync_directory(folder)
    finally:
        for path in sizes:  # includes a file whose creation was interrupted by a signal
            with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL in the name
                temporary_path(path).unlink()


def move_to_new_folder(files: Sequence[AtomicFile]) -> Path:
    """Move complete files, under their names, to a new folder beside the first one, and return the folder."""
    first = files[0]
    with raise_write_errors(first.path, first.size):
        folder = Path(tempfile.mkdtemp(prefix=f"{first.path.name}.", dir=first.path.parent))
        for file in files:
            file.temporary.rename(folder / file.path.name)
        sync_directory(folder)
    return folder


def require_writable_path(path: Path, replace: bool) -> None:
    """Raise UsageError if no file can be created at `path`, before any work is done."""
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"{display_path(path)}: is there, and is no file")
        if path.exists() and not replace:
            raise UsageError(f"{display_path(path)}: is there already; force (--force) replaces it")
        if not path.parent.is_dir():
            raise UsageError(f"{display_path(path)}: there is no directory {display_path(path.parent)}")
    except (OSError, ValueError) as error:  # a name too long, a NUL inside
        problem = getattr(error, "strerror", None) or "cannot be the name of a file"
        raise UsageError(f"{display_path(path)}: {problem}") from None


def require_space(sizes: Mapping[Path, int]) -> None:
    """Raise LocalInferError if the disk has not enough space for these files in addition to their old versions."""
    needed = sum(sizes.values())
    folder = next(iter(sizes)).parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalInferError(f"{display_path(folder)}: {needed:,} bytes are needed, {free:,} are free")


def remove_leftovers(path: Path) -> None:
    """Delete the temporary files of processes that were killed while they wrote this file."""
    pattern = re.compile(re.escape(f".{path.name}.tmp-") + r"(\d+)")
    for leftover in path.parent.iterdir():
        match = pattern.fullmatch(leftover.name)
        if match and not is_running(int(match[1])):
            with contextlib.suppress(OSError):
                leftover.unlink()


def is_running(process: int) -> bool:
    """Return whether another process with this id is running."""
    import psutil  # imported late: it takes 8 ms and is rarely needed

    return process != os.getpid() and bool(psutil.pid_exists(process))


def temporary_path(path: Path) -> Path:
    """Return the path of a file while it is incomplete."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def create_temporary(path: Path, size: int, mode: int) -> AtomicFile:
    """Create the temporary file. Raises LocalInferError if the directory is not writable."""
    temporary = temporary_path(path)
    with raise_write_errors(path, size):
        descriptor = os.open(temporary, CREATE_FLAGS, mode)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
    return AtomicFile(path, temporary, size, descriptor)


def sync_directory(folder: Path) -> None:
    """Make renames in a directory durable, on systems where a directory can be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
