"""`hf:OWNER/REPO[:QUANT]`: models of the Hugging Face hub, in the cache that all its programs share.

What is in the cache is found without asking anybody; of several commits, first in the branch's.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from localinfer.errors import UsageError
from localinfer.files.unfinished import left_in
from localinfer.models.choice import Wanted, chosen, means, models_among, wanted
from localinfer.models.hub_cache import cache, note_of, repo_folder, snapshots
from localinfer.models.stores import Listed, NotFetched, Progress, children, files_below, readable
from localinfer.options import Layer

TITLE = "Hugging Face"
REPO_FOLDER = re.compile(r"models--(.+?)--(.+)")


def folders() -> list[Path]:
    return [cache()] if readable(cache()) else []


def find(name: str) -> Path:
    what = wanted(name, "hf")
    if not (parts := located(what)):
        raise NotFetched(f"hf:{name}: not fetched yet; `localinfer pull hf:{name}` fetches it")
    return parts[0]


def default_options(_: str) -> Layer:
    return {}


def listed() -> Iterator[Listed]:
    for folder in children(cache()):
        if found := REPO_FOLDER.fullmatch(folder.name):
            yield from listed_in(folder, f"{found[1]}/{found[2]}")


def listed_in(folder: Path, repo: str) -> Iterator[Listed]:
    """The models of one repository, each as `find` finds it."""
    seen = set()
    for snapshot in snapshots(folder):
        for name, parts in models_among(files_below(snapshot), repo).items():
            if name not in seen:
                yield Listed.here(f"hf:{name}", [snapshot / part for part in parts])
            seen.add(name)
    for left in left_in(folder / "blobs"):
        yield Listed.begun(f"hf:{repo}/{left.identity.get('file', '')}", [], [left])


def fetch(name: str, progress: Progress) -> Path:
    from localinfer.models.hub_download import fetch as fetch_from_hub

    return fetch_from_hub(wanted(name, "hf"), progress)


def removable(name: str) -> list[Path]:
    """Links in all commits, what they lead to, and with the last file of a repository the names of its commits."""
    what = wanted(name, "hf")
    folder = repo_folder(what.repo)
    started = [left for left in left_in(folder / "blobs") if means(what, left.identity.get("file", ""))]
    parts = located(what) or [
        snapshot / path for snapshot in snapshots(folder) for path in files_below(snapshot) if means(what, path)
    ]
    notes = [note_of(part) for part in parts]
    if not all(note.is_file() for note in notes):
        raise UsageError(f"hf:{name}: another program has put it into the cache that they share; `hf cache` removes it")
    blobs = {led_to(part) for part in parts}
    every = [path for path in (folder / "snapshots").rglob("*") if not path.is_dir()]
    links = [path for path in every if led_to(path) in blobs]
    commits = [path for path in (folder / "refs").rglob("*") if path.is_file()] if len(links) == len(every) else []
    unfinished = [file for left in started for file in left.files]
    return [*links, *sorted(blobs - set(links)), *unfinished, *notes, *commits]


def led_to(link: Path) -> Path:
    """The file that a link names; where there are no links, the file itself."""
    return Path(os.path.normpath(link.parent / link.readlink())) if link.is_symlink() else link


def located(what: Wanted) -> list[Path]:
    """The files of a model that is in the cache; none if it is not."""
    for snapshot in snapshots(repo_folder(what.repo)):
        if parts := chosen(files_below(snapshot), what):
            return [snapshot / part for part in parts]
    return []
