"""What all places have in common that models lie in: names, files, and the words for what is not there.

A store is a module with the functions of `Store`. What it calls a name is what stands behind `SCHEME:`.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localinfer.errors import LocalInferError, ModelNotFound
from localinfer.files.part_names import NAME, names_of_parts
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.files.unfinished import Left

MARGIN = 64 << 20  # bytes of the disk that we leave free
OFFLINE = ("LOCALINFER_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
Progress = Callable[[str, int, int], None]  # stage, done, total; of a download in bytes


class NotFetched(ModelNotFound):
    """A model that is not here, and that can be fetched."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that is here, or on its way: then `share` of its bytes are."""

    name: str  # with which it is found again
    files: tuple[Path, ...]
    size: int  # bytes of all of them
    share: float = 1.0

    @classmethod
    def here(cls, name: str, files: Sequence[Path]) -> "Listed":
        return cls(name, tuple(files), sum(file.stat().st_size for file in files))

    @classmethod
    def begun(cls, name: str, files: Sequence[Path], left: Sequence["Left"]) -> "Listed":
        """These files are here, and something of others."""
        here = cls.here(name, files)
        size = here.size + sum(each.size for each in left)
        written = here.size + sum(each.size * each.share for each in left)
        return cls(name, (*here.files, *(file for each in left for file in each.files)), size, written / size)


class Store(Protocol):
    """A module that knows one place."""

    TITLE: str

    def folders(self) -> list[Path]:
        """Where it is; those that exist."""

    def find(self, name: str) -> Path:
        """The first file of a model. Raises NotFetched, or ModelNotFound where we cannot fetch it."""

    def default_options(self, name: str) -> Layer:
        """The options that go with the model."""

    def listed(self) -> Iterator[Listed]:
        """All models that are there."""

    def fetch(self, name: str, progress: Progress) -> Path:
        """Bring the model here. Raises ModelNotFound, LocalInferError."""

    def removable(self, name: str) -> list[Path]:
        """What can be deleted of a model. Raises ModelNotFound; UsageError where it is not ours."""


def require_network(name: str) -> None:
    """Raise ModelNotFound where the user does not want us to ask anybody for the model."""
    for variable in OFFLINE:
        if os.environ.get(variable, "").upper() not in ("", "0", "FALSE", "NO", "OFF"):
            raise ModelNotFound(f"{name}: not on this machine, and {variable} says to ask nobody for it")


def require_room(name: str, folder: Path, needed: int) -> None:
    """Raise LocalInferError where so many bytes would fill the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed + MARGIN:
        sizes = f"{(needed + MARGIN) >> 20:,} MiB, {free >> 20:,} MiB are free"
        raise LocalInferError(f"{folder}: {name} needs {sizes}")


def expanded(place: str) -> Path:
    """With the user's home in the place of ~; where nobody knows it, a path that leads nowhere."""
    try:
        return Path(place).expanduser()
    except RuntimeError:
        return Path(place)


def readable(folder: Path) -> bool:
    """Is there a directory, as far as we can see?"""
    try:
        return folder.is_dir()
    except OSError:
        return False


def children(folder: Path) -> list[Path]:
    """What is in a directory, as far as we can see."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def siblings(first: Path) -> list[Path]:
    """All files of the model whose first one this is."""
    part = NAME.fullmatch(first.name)
    return (part and names_of_parts(first, int(part["count"]))) or [first]


def files_below(folder: Path) -> list[str]:
    """The GGUF files in a directory and all that are in it, by their names from there on, with /."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if is_file(path))


def is_file(path: Path) -> bool:
    """Is there a file, as far as we can see?"""
    try:
        return path.is_file()
    except OSError:
        return False


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Let only one process fetch. The lock is the system's: it ends with the process that holds it."""
    import filelock

    held = filelock.FileLock(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held.acquire()
    except NotImplementedError:  # some network file systems; the last rename wins, with the same bytes
        pass
    except OSError as error:
        raise LocalInferError(f"{lock}: {error.strerror}") from None
    try:
        yield
    finally:
        held.release()
