"""A file written in several runs. Finished steps survive an interruption or a power failure.

    with resumable_file(path, size, identity, replace=False) as file:
        for step in range(file.steps_done, steps):
            file.file.write_at(offset, data)
            file.save_progress(step + 1)     # the next run continues after this step

Until the file is complete it is stored as `.NAME.unfinished`, with `.NAME.unfinished.json` recording the identity of
the file and the progress. When the block succeeds, the file is renamed to its final name (see
`localinfer.gguf.atomic_file`). An error removes both files unless `keep_on_error` is set.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.gguf import file_descriptors
from localinfer.gguf.atomic_file import (
    AtomicFile,
    atomic_files,
    display_path,
    raise_write_errors,
    require_space,
    require_writable_path,
    sync_directory,
)
from localinfer.gguf.huge_pages import drop_small_pages

CHUNK_BYTES = 1 << 20  # bytes per read
# Errors of reading a damaged progress file.
STATE_ERRORS = OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError
Identity = Mapping[str, str]  # the inputs of a file: user-readable name -> value


@dataclass
class ResumableFile:
    """A file in progress: `steps_done` steps are on disk, as the first `n_bytes` bytes if they are written in order.

    `discard_reason` states why the progress of an earlier run could not be used, if there was any.
    """

    file: AtomicFile
    state_file: Path
    identity: Identity
    steps_done: int = 0
    n_bytes: int = 0
    discard_reason: str = ""

    def read_saved(self) -> Iterator[bytes]:
        """Yield the first `n_bytes` bytes in chunks."""
        for at in range(0, self.n_bytes, CHUNK_BYTES):
            yield file_descriptors.read_at(self.file.descriptor, min(CHUNK_BYTES, self.n_bytes - at), at)

    def save_progress(self, done: int, at: int = 0) -> None:
        """Sync all bytes written so far and store the progress, so that it survives a crash."""
        with raise_write_errors(self.file.path, self.file.size):
            os.fsync(self.file.descriptor)
        content = json.dumps({"identity": dict(self.identity), "done": done, "at": at}).encode()
        with atomic_files({self.state_file: len(content)}, replace=True) as [notes]:
            notes.write_at(0, content)
        self.steps_done, self.n_bytes = done, at

    def discard(self) -> None:
        """Discard the recorded progress and start from the beginning.

        A power failure must not bring the progress back when the bytes are already others.
        """
        if self.state_file.exists():
            self.state_file.unlink()
            sync_directory(self.state_file.parent)
        self.steps_done = self.n_bytes = 0

    def remove(self) -> None:
        """Delete the unfinished file and its progress file."""
        self.file.temporary.unlink(missing_ok=True)
        self.state_file.unlink(missing_ok=True)


@contextmanager
def resumable_file(
    path: Path, size: int, identity: Identity, *, replace: bool, keep_on_error: bool = False
) -> Iterator[ResumableFile]:
    """Open a file of this size, continuing an earlier run with the same `identity`, or filled with zeros.

    With `keep_on_error`, progress also survives errors. Raises LocalInferError if another process is writing the file.
    """
    require_writable_path(path, replace)
    made = open_or_resume(path, size, identity)
    with contextlib.ExitStack() as descriptor:
        descriptor.callback(os.close, made.file.descriptor)
        try:
            require_space({path: size - allocated_bytes(made.file)})
            with raise_write_errors(path, size):
                os.ftruncate(made.file.descriptor, size)
            yield made
            with raise_write_errors(path, size):
                os.fsync(made.file.descriptor)
                drop_small_pages(made.file.descriptor)
                if file_descriptors.HOLDS_OPEN_FILES:
                    descriptor.close()
                os.replace(made.file.temporary, path)  # noqa: PTH105
                sync_directory(path.parent)
            made.state_file.unlink(missing_ok=True)
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            if not made.steps_done or not (interrupted or keep_on_error):
                if file_descriptors.HOLDS_OPEN_FILES:
                    descriptor.close()
                made.remove()
            raise


def unfinished_path(path: Path) -> Path:
    """Return the path of the file while it is being written."""
    return path.with_name(f".{path.name}.unfinished")


def open_or_resume(path: Path, size: int, identity: Identity) -> ResumableFile:
    """Open the unfinished file, with the progress of an earlier run if it is usable."""
    temporary = unfinished_path(path)
    with raise_write_errors(path, size):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        lock_exclusively(path, descriptor)
        made = ResumableFile(
            AtomicFile(path, temporary, size, descriptor), temporary.with_suffix(".unfinished.json"), identity
        )
        made.steps_done, made.n_bytes, made.discard_reason = load_progress(made)
        if not made.steps_done:
            made.discard()
            os.ftruncate(descriptor, 0)
        return made
    except BaseException:
        os.close(descriptor)
        raise


def lock_exclusively(path: Path, descriptor: int) -> None:
    """Lock the file as long as this process has it open. Raises LocalInferError if another process holds the lock."""
    if not file_descriptors.try_lock(descriptor):
        raise LocalInferError(f"{display_path(path)}: another process is writing it")


def load_progress(made: ResumableFile) -> tuple[int, int, str]:
    """Return the number of finished steps, their size in bytes, and the reason if earlier progress is unusable."""
    if not made.state_file.is_file():  # reading a pipe would block
        return 0, 0, ""
    with contextlib.suppress(*STATE_ERRORS):
        notes = json.loads(made.state_file.read_bytes())
        other = [key for key, value in made.identity.items() if notes["identity"].get(key) != value]
        if other:
            return 0, 0, f"it has another {' and another '.join(other)}"
        done, at = int(notes["done"]), int(notes["at"])
        if os.fstat(made.file.descriptor).st_size == made.file.size and done > 0 and 0 <= at <= made.file.size:
            return done, at, ""
    return 0, 0, "it is damaged"


def allocated_bytes(file: AtomicFile) -> int:
    """Return the number of bytes that the file already occupies on disk."""
    return min(file.size, 512 * getattr(os.fstat(file.descriptor), "st_blocks", 0))


def missing_bytes(path: Path, size: int) -> int:
    """Return how many more bytes the disk must hold for a file of this size, given the unfinished one."""
    try:
        status = unfinished_path(path).stat()
    except OSError:
        return size
    return max(0, size - 512 * getattr(status, "st_blocks", 0))


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """An unfinished file: `written_fraction` of its `size` bytes may be written."""

    identity: Identity
    files: tuple[Path, ...]
    size: int
    written_fraction: float


def find_unfinished(folder: Path) -> Iterator[UnfinishedFile]:
    """Yield the unfinished files in a directory."""
    for notes in sorted(folder.glob(".*.unfinished.json")):
        temporary = notes.with_suffix("")
        with contextlib.suppress(*STATE_ERRORS):
            if not notes.is_file():  # reading a pipe would block
                continue
            identity = {str(key): str(value) for key, value in json.loads(notes.read_bytes())["identity"].items()}
            status = temporary.stat()
            written = min(status.st_size, 512 * getattr(status, "st_blocks", 0))
            yield UnfinishedFile(identity, (temporary, notes), max(status.st_size, 1), written / max(status.st_size, 1))
