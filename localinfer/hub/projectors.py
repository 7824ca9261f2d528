"""The projector of a model on this machine: the file (mmproj) with which it reads images or sounds.

    find_projector("hf:OWNER/REPO", file)    beside the model, or what its store says
    media_kinds(projector)                   {"image"}, {"image", "video"}, {"audio"} ...
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.hub import resolve
from localinfer.hub.model_store import is_file, list_directory
from localinfer.hub.projector_selection import is_projector, select_projector
from localinfer.options import Options

NOUNS = {"image": "images", "video": "videos", "audio": "audio"}


def projector_of(name: str | Path, file: Path, options: Options) -> Path | None:
    """Return the projector that the options name, or else the one that belongs to the model; None without one.

    A name counts more than `mmproj_auto`; the merge of layers drops it if a stronger layer sets `mmproj_auto`.
    Raises ModelNotFoundError if the options name a missing file.
    """
    if options.mmproj:
        return resolve.find(options.mmproj)
    return find_projector(name, file) if options.mmproj_auto else None


def find_projector(name: str | Path, file: Path) -> Path | None:
    """Return the projector that belongs to a model with this name and first file; None if there is none."""
    resolved = resolve.resolve(name) if isinstance(name, str) and name else None
    if resolved and hasattr(resolved.store, "find_projector"):  # of the hub, and of Ollama
        found: Path | None = resolved.store.find_projector(resolved.name)
        return found
    return find_beside(file)


def find_beside(model: Path) -> Path | None:
    """Return the projector in the folder of a model."""
    files = [path.name for path in list_directory(model.parent) if path.suffix == ".gguf" and is_file(path)]
    if not any(map(is_projector, files)):
        return None
    found = select_projector(files, model.name)
    return model.with_name(found) if found and found != model.name else None


def media_kinds(projector: Path | None) -> frozenset[str]:
    """Return what a projector encodes: "image", "audio", "video"; nothing for None, for a damaged file, and for
    encoders that are not supported."""
    if projector is None:
        return frozenset()
    try:
        state = projector.stat()
        return _media_kinds(projector, state.st_mtime_ns, state.st_size)
    except (OSError, LocalInferError):
        return frozenset()


def kinds_text(kinds: Iterable[str]) -> str:
    """Return "images", "images and audio", "images, videos and audio" ...; "" for nothing."""
    *others, last = [noun for kind, noun in NOUNS.items() if kind in kinds] or [""]
    return f"{', '.join(others)} and {last}" if others else last


@lru_cache(maxsize=64)
def _media_kinds(projector: Path, _mtime: int, _size: int) -> frozenset[str]:
    from localinfer.multimodal.encoders import find_encoder  # few models have a projector
    from localinfer.multimodal.sounds.encoders import find_family

    metadata = open_gguf(projector).metadata
    found = {}
    for key, find in ("vision", find_encoder), ("audio", find_family):
        name = metadata.get(f"clip.{key}.projector_type", metadata.get("clip.projector_type"))
        if metadata.get(f"clip.has_{key}_encoder") is True and isinstance(name, str):
            found[key] = find(name)
    encoder = found.get("vision")
    kinds = {"image": encoder, "audio": found.get("audio"), "video": getattr(encoder, "video", None)}
    return frozenset(kind for kind, each in kinds.items() if each)
