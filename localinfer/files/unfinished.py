"""A file that is made in several goes: what is done of it outlives an interruption, and a power cut.

    with unfinished(path, size, identity, replace=False) as file:
        for step in range(file.done, steps):
            file.write_at(place, data)
            file.keep(step + 1)     # from here on, the next go begins behind this step

Until it is whole it lies beside its place as `.NAME.unfinished`, with `.NAME.unfinished.json` that says what it is to
become and how much is done. When the block ends well it appears under its name, as `localinfer.files.safe_file` has it;
an error leaves nothing. Knows nothing of what is written.
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

Identity = Mapping[str, str]  # what a file is made of, by words that a user understands


@dataclass
class Unfinished:
    """`done` steps are on the disk. `discarded` says why what was left of another go was of no use, if anything was."""

    file: SafeFile
    notes: Path
    identity: Identity
    done: int = 0
    discarded: str = ""

    def keep(self, done: int) -> None:
        """Have all that was written so far outlive whatever comes."""
        with told_of(self.file.path, self.file.size):
            os.fsync(self.file.descriptor)
        content = json.dumps({"identity": dict(self.identity), "done": done}).encode()
        with appearing({self.notes: len(content)}, replace=True) as [notes]:
            notes.write_at(0, content)
        self.done = done

    def remove(self) -> None:
        """Leave nothing."""
        self.file.temporary.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)


@contextmanager
def unfinished(path: Path, size: int, identity: Identity, *, replace: bool) -> Iterator[Unfinished]:
    """A file of this size, made of what `identity` says: as far as the last go came, or zeros.

    Raises LocalInferError where another process makes it.
    """
    require_free_name(path, replace)
    made = opened(path, size, identity)
    try:
        require_space({path: size - allocated(made.file)})
        with told_of(path, size):
            os.truncate(made.file.descriptor, size)
        yield made
        finish(made)
    except Exception:
        made.remove()
        raise
    except BaseException:  # an interruption
        if not made.done:
            made.remove()
        raise
    finally:
        os.close(made.file.descriptor)


def opened(path: Path, size: int, identity: Identity) -> Unfinished:
    """What is left of another go, if it is of use."""
    temporary = path.with_name(f".{path.name}.unfinished")
    with told_of(path, size):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        require_alone(path, descriptor)
        made = Unfinished(
            SafeFile(path, temporary, size, descriptor), temporary.with_suffix(".unfinished.json"), identity
        )
        made.done, made.discarded = found_in(made)
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


def found_in(made: Unfinished) -> tuple[int, str]:
    """How many steps are done, and why it is none although there was something."""
    if not made.notes.exists():
        return 0, ""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        notes = json.loads(made.notes.read_bytes())
        other = [word for word, value in made.identity.items() if notes["identity"].get(word) != value]
        if other:
            return 0, f"it has another {' and another '.join(other)}"
        if os.fstat(made.file.descriptor).st_size == made.file.size and int(notes["done"]) > 0:
            return int(notes["done"]), ""
    return 0, "it is damaged"


def allocated(file: SafeFile) -> int:
    """The bytes that it takes on the disk already."""
    return min(file.size, 512 * getattr(os.fstat(file.descriptor), "st_blocks", 0))


def finish(made: Unfinished) -> None:
    """Have the file appear."""
    with told_of(made.file.path, made.file.size):
        os.fsync(made.file.descriptor)
        os.replace(made.file.temporary, made.file.path)  # noqa: PTH105
        sync_names(made.file.path.parent)
    made.notes.unlink(missing_ok=True)
