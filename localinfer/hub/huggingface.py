"""The model store `hf:OWNER/REPO[:QUANT]`: models of the Hugging Face hub, in the cache that all its clients share.

Cached models are found without network access. Of several cached commits, the one of the branch `main` is preferred.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from localinfer.errors import UsageError
from localinfer.escaping import shell_word
from localinfer.gguf.resumable_file import find_unfinished
from localinfer.hub.file_selection import (
    ModelReference,
    group_by_model,
    is_model,
    matches,
    parse_reference,
    select_files,
)
from localinfer.hub.huggingface_cache import (
    DIGEST,
    PRESET,
    cache_directory,
    marker_path,
    repo_directory,
    snapshot_directories,
)
from localinfer.hub.model_store import (
    NotDownloadedError,
    Progress,
    StoredModel,
    gguf_files,
    is_directory,
    list_directory,
)
from localinfer.hub.projector_selection import select_projector
from localinfer.options import Layer

TITLE = "Hugging Face"
REPO_FOLDER = re.compile(r"models--(.+?)--(.+)")


def directories() -> list[Path]:
    return [cache_directory()] if is_directory(cache_directory()) else []


def find(name: str) -> Path:
    reference = parse_reference(name, "hf")
    if not (parts := locate(reference)):
        raise NotDownloadedError(f"hf:{name}: not downloaded; run `localinfer pull {shell_word(f'hf:{name}')}`")
    return parts[0]


def default_options(_: str) -> Layer:
    return {}


def find_preset(repo: str) -> Path | None:
    """Return the cached file of presets of a repository; None if there is none."""
    files = [snapshot / PRESET for snapshot in snapshot_directories(repo_directory(repo))]
    return next(filter(Path.is_file, files), None)


def list_models() -> Iterator[StoredModel]:
    for folder in list_directory(cache_directory()):
        if match := REPO_FOLDER.fullmatch(folder.name):
            yield from list_repo(folder, f"{match[1]}/{match[2]}")


def list_repo(folder: Path, repo: str) -> Iterator[StoredModel]:
    """Yield the models of one cached repository, under the names by which `find` finds them."""
    names = set()
    for snapshot in snapshot_directories(folder):
        for name, parts in group_by_model(gguf_files(snapshot), repo).items():
            if name not in names:
                yield StoredModel.complete(f"hf:{name}", [snapshot / part for part in parts])
            names.add(name)
    for unfinished in find_unfinished(folder / "blobs"):
        yield StoredModel.partial(f"hf:{repo}/{unfinished.identity.get('file', '')}", [], [unfinished])


def fetch(name: str, progress: Progress) -> Path:
    from localinfer.hub.huggingface_download import fetch as fetch_from_hub

    return fetch_from_hub(parse_reference(name, "hf"), progress)


def fetch_projector(name: str, progress: Progress) -> Path | None:
    """Download the projector of a model if the repository has one, and return it."""
    from localinfer.hub.huggingface_download import fetch_projector as fetch_from_hub

    return fetch_from_hub(parse_reference(name, "hf"), progress)


def find_projector(name: str) -> Path | None:
    """Return the projector of a model in the cache."""
    reference = parse_reference(name, "hf")
    for snapshot in snapshot_directories(repo_directory(reference.repo)):
        files = gguf_files(snapshot)
        if parts := select_files(files, reference):
            projector = select_projector(files, parts[0])
            return snapshot / projector if projector else None
    return None


def announced_digest(name: str) -> str:
    """Return the SHA-256 of a model's first file on the hub; "" if the hub knows none."""
    from localinfer.hub.huggingface_download import announced_digest as request_digest

    return request_digest(parse_reference(name, "hf"))


def digests(name: str) -> Mapping[Path, str]:
    names = {part: link_target(part).name for part in locate(parse_reference(name, "hf"))}
    return {part: name if DIGEST.fullmatch(name) else "" for part, name in names.items()}


def removable_files(name: str) -> list[Path]:
    """Return the links in all commits, their blobs, and with the last file of a repository also its refs."""
    reference = parse_reference(name, "hf")
    folder = repo_directory(reference.repo)
    unfinished = [
        download
        for download in find_unfinished(folder / "blobs")
        if matches(reference, download.identity.get("file", ""))
    ]
    parts = [*locate(reference), *unshared_projectors(reference)] or [
        snapshot / path
        for snapshot in snapshot_directories(folder)
        for path in gguf_files(snapshot)
        if matches(reference, path)
    ]
    markers = [marker_path(part) for part in parts]
    if not all(marker.is_file() for marker in markers):
        raise UsageError(f"hf:{name}: downloaded by another program into the shared cache; `hf cache` removes it")
    blobs = {link_target(part) for part in parts}
    all_links = [path for path in (folder / "snapshots").rglob("*") if not path.is_dir()]
    links = [path for path in all_links if link_target(path) in blobs]
    commits = [path for path in (folder / "refs").rglob("*") if path.is_file()] if len(links) == len(all_links) else []
    unfinished_files = [file for download in unfinished for file in download.files]
    return [*links, *sorted(blobs - set(links)), *unfinished_files, *markers, *commits]


def unshared_projectors(reference: ModelReference) -> list[Path]:
    """Return the projector of a model that localinfer has downloaded, unless another model of the cache needs it."""
    for snapshot in snapshot_directories(repo_directory(reference.repo)):
        files = gguf_files(snapshot)
        if parts := select_files(files, reference):
            projector = select_projector(files, parts[0])
            others = [path for path in files if is_model(path) and path not in parts]
            is_shared = any(select_projector(files, other) == projector for other in others)
            path = snapshot / projector
            return [path] if projector and not is_shared and marker_path(path).is_file() else []
    return []


def link_target(link: Path) -> Path:
    """Return the blob that a link refers to; the file itself on systems without links."""
    return Path(os.path.normpath(link.parent / link.readlink())) if link.is_symlink() else link


def locate(reference: ModelReference) -> list[Path]:
    """Return the cached files of a model; an empty list if it is not complete."""
    for snapshot in snapshot_directories(repo_directory(reference.repo)):
        if parts := select_files(gguf_files(snapshot), reference):
            return [snapshot / part for part in parts]
    return []
