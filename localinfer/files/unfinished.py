"""A file that is made in several goes: what is done of it outlives an interruption, and a power cut.

    with unfinished(path, size, identity, replace=False) as file:
        for step in range(file.done, steps):
            file.write_at(place, data)
            file.keep(step + 1)     # from here on, the next go begins behind this step

Until it is whole it lies beside its place as `.NAME.unfinished`, with `.NAME.unfinished.json` that says what it is to
become and how much is done. When the block ends well it appears under its name, as `localinfer.files.safe_file` has it;
an error leaves nothing, unless what is done is to last. Knows nothing of what is written.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.files.safe_file import (
    SafeFile,
    appearing,
    require_free_name,
    require_space,
    shown,
    sync_names,
    told_of,
)

PIECE = 1 << 20  # bytes that are read at once
Identity = Mapping[str, str]  # what a file is made of, by words that a user understands


@dataclass
class Unfinished:
    """`done` steps are on the disk; where they are written in order, they are the first `at` bytes.

    `discarded` says why what was left of another go was of no use, if anything was.
    """

    file: SafeFile
    notes: Path
    identity: Identity
    done: int = 0
    at: int = 0
    discarded: str = ""

    def kept(self) -> Iterator[bytes]:
        """The first `at` bytes, in pieces."""
        for at in range(0, self.at, PIECE):
            yield os.pread(self.file.descriptor, min(PIECE, self.at - at), at)

    def keep(self, done: int, at: int = 0) -> None:
        """Have all that was written so far outlive whatever comes."""
        with told_of(self.file.path, self.file.size):
            os.fsync(self.file.descriptor)
        content = json.dumps({"identity": dict(self.identity), "done": done, "at": at}).encode()
        with appearing({self.notes: len(content)}, replace=True) as [notes]:
            notes.write_at(0, content)
        self.done, self.at = done, at

    def discard(self) -> None:
        """Begin anew: what is done is of no use."""
        self.notes.unlink(missing_ok=True)
        self.done = self.at = 0

    def remove(self) -> None:
        """Leave nothing."""
        self.file.temporary.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)


@contextmanager
def unfinished(
    path: Path, size: int, identity: Identity, *, replace: bool, lasting: bool = False
) -> Iterator[Unfinished]:
    """A file of this size, made of what `identity` says: as far as the last go came, or zeros.

    With `lasting`, what is done outlives errors, too. Raises LocalInferError where another process makes it.
    """
    require_free_name(path, replace)
    made = opened(path, size, identity)
    try:
        require_space({path: size - allocated(made.file)})
        with told_of(path, size):
            os.truncate(made.file.descriptor, size)
        yield made
        finish(made)
    except BaseException as error:
        interrupted = not isinstance(error, Exception)
        if not made.done or not (interrupted or lasting):
            made.remove()
        raise
    finally:
        os.close(made.file.descriptor)


def unfinished_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def opened(path: Path, size: int, identity: Identity) -> Unfinished:
    """What is left of another go, if it is of use."""
    temporary = unfinished_name(path)
    with told_of(path, size):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        require_alone(path, descriptor)
        made = Unfinished(
            SafeFile(path, temporary, size, descriptor), temporary.with_suffix(".unfinished.json"), identity
        )
        made.done, made.at, made.discarded = found_in(made)
        if not made.done:
            made.notes.unlink(missing_ok=True)
            os.truncate(descriptor, 0)
        return made
    except BaseException:
        os.close(descriptor)
        raise


def require_alone(path: Path, descriptor: int) -> None:
    """Lock the file, as long as this process has it open."""
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LocalInferError(f"{shown(path)}: another process is making it") from None


def found_in(made: Unfinished) -> tuple[int, int, str]:
    """How many steps are done, how many bytes that are, and why it is none although there was something."""
    if not made.notes.exists():
        return 0, 0, ""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        notes = json.loads(made.notes.read_bytes())
        other = [word for word, value in made.identity.items() if notes["identity"].get(word) != value]
        if other:
            return 0, 0, f"it has another {' and another '.join(other)}"
        done, at = int(notes["done"]), int(notes["at"])
        if os.fstat(made.file.descriptor).st_size == made.file.size and done > 0 and 0 <= at <= made.file.size:
            return done, at, ""
    return 0, 0, "it is damaged"


def allocated(file: SafeFile) -> int:
    """The bytes that it takes on the disk already."""
    return min(file.size, 512 * getattr(os.fstat(file.descriptor), "st_blocks", 0))


def still_needed(path: Path, size: int) -> int:
    """The bytes of a file of this size that the disk must still take, by what is left of another go."""
    try:
        status = unfinished_name(path).stat()
    except OSError:
        return size
    return max(0, size - 512 * getattr(status, "st_blocks", 0))


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a go: of `size` bytes this `share` may be written."""

    identity: Identity
    files: tuple[Path, ...]
    size: int
    share: float


def left_in(folder: Path) -> Iterator[Left]:
    """All that was begun in a directory and is not finished."""
    for notes in sorted(folder.glob(".*.unfinished.json")):
        temporary = notes.with_suffix("")
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            identity = {str(word): str(value) for word, value in json.loads(notes.read_bytes())["identity"].items()}
            status = temporary.stat()
            written = min(status.st_size, 512 * getattr(status, "st_blocks", 0))
            yield Left(identity, (temporary, notes), max(status.st_size, 1), written / max(status.st_size, 1))


def finish(made: Unfinished) -> None:
    """Have the file appear."""
    with told_of(made.file.path, made.file.size):
        os.fsync(made.file.descriptor)
        os.replace(made.file.temporary, made.file.path)  # noqa: PTH105
        sync_names(made.file.path.parent)
    made.notes.unlink(missing_ok=True)
