"""The interface of model stores, and functions that they share.

A model store is a module with the functions of `ModelStore`. The names of its models are written behind `SCHEME:`.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from localinfer.errors import LocalInferError, ModelNotFoundError
from localinfer.gguf.split_names import NAME, split_paths
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.gguf.resumable_file import UnfinishedFile

MAX_DEPTH = 32  # of a file in the directories of a repository
MARGIN = 64 << 20  # bytes of the disk to leave free
OFFLINE = ("LOCALINFER_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
Progress = Callable[[str, int, int], None]  # stage, done, total; bytes for a download


class NotDownloadedError(ModelNotFoundError):
    """The model is not on this machine, but can be downloaded."""


class StoredModel(NamedTuple):
    """A model on this machine; `fraction` is below 1 for an unfinished download."""

    name: str  # by which `find` finds it
    files: tuple[Path, ...]
    size: int  # bytes of all of them
    fraction: float = 1.0

    @classmethod
    def complete(cls, name: str, files: Sequence[Path]) -> "StoredModel":
        """Return a complete model with these files."""
        return cls(name, tuple(files), sum(file.stat().st_size for file in files))

    @classmethod
    def partial(cls, name: str, files: Sequence[Path], unfinished: Sequence["UnfinishedFile"]) -> "StoredModel":
        """Return an unfinished download: complete files, and partial ones."""
        finished = cls.complete(name, files)
        size = finished.size + sum(download.size for download in unfinished)
        written = finished.size + sum(download.size * download.written_fraction for download in unfinished)
        return cls(
            name, (*finished.files, *(file for download in unfinished for file in download.files)), size, written / size
        )


class ModelStore(Protocol):
    """The functions of a model store."""

    TITLE: str

    def directories(self) -> list[Path]:
        """Return the existing directories of the store."""

    def find(self, name: str) -> Path:
        """Return the first file of a model. Raises NotDownloadedError, or ModelNotFoundError if it cannot be
        downloaded.
        """

    def default_options(self, name: str) -> Layer:
        """Return the options that belong to the model."""

    def list_models(self) -> Iterator[StoredModel]:
        """Yield all models in the store."""

    def fetch(self, name: str, progress: Progress) -> Path:
        """Download the model, and return its first file. Raises ModelNotFoundError, LocalInferError."""

    def digests(self, name: str) -> Mapping[Path, str]:
        """Return the files of a model that is on this machine, with their SHA-256 or git's SHA-1; "" if unknown."""

    def removable_files(self, name: str) -> list[Path]:
        """Return the files to delete for a model. Raises ModelNotFoundError; UsageError if they are not ours."""


def require_network(name: str) -> None:
    """Raise ModelNotFoundError in offline mode."""
    if variable := offline_variable():
        raise ModelNotFoundError(f"{name}: not on this machine, and {variable} forbids downloads")


def offline_variable() -> str:
    """Return the environment variable that sets offline mode, or ""."""
    values = {name: os.environ.get(name, "").upper() for name in OFFLINE}
    return next((name for name, value in values.items() if value not in ("", "0", "FALSE", "NO", "OFF")), "")


def require_disk_space(name: str, folder: Path, needed: int) -> None:
    """Raise LocalInferError if `needed` bytes would fill the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed + MARGIN:
        sizes = f"{(needed + MARGIN) >> 20:,} MiB, {free >> 20:,} MiB are free"
        raise LocalInferError(f"{folder}: {name} needs {sizes}")


def expand_user(path: str) -> Path:
    """Expand ~; returns the path unchanged if the home directory is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_directory(folder: Path) -> bool:
    """Return whether the directory exists and is accessible."""
    try:
        return folder.is_dir()
    except OSError:
        return False


def list_directory(folder: Path) -> list[Path]:
    """Return the sorted entries of a directory; an empty list if it is not accessible."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def all_parts(first: Path) -> list[Path]:
    """Return all files of the model with this first file."""
    part = NAME.fullmatch(first.name)
    return (part and split_paths(first, int(part["count"]))) or [first]


def gguf_files(folder: Path) -> list[str]:
    """Return the GGUF files below a directory, as relative paths with /. Symbolic links to directories are not
    followed.
    """
    found, folders = [], [(folder, 0)]
    while folders:
        parent, depth = folders.pop()
        for path in list_directory(parent):
            if path.name.endswith(".gguf") and is_file(path):
                found.append(path.relative_to(folder).as_posix())
            elif depth < MAX_DEPTH and is_directory(path) and not path.is_symlink():
                folders.append((path, depth + 1))
    return sorted(found)


def is_file(path: Path) -> bool:
    """Return whether the file exists and is accessible."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes. The operating system releases it when the process ends."""
    import filelock

    file_lock = filelock.FileLock(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file_lock.acquire()
    except NotImplementedError:  # some network file systems; concurrent downloads write the same bytes
        pass
    except OSError as error:
        raise LocalInferError(f"{lock}: {error.strerror}") from None
    try:
        yield
    finally:
        file_lock.release()
