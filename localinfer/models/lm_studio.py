"""`lmstudio:OWNER/REPO[:QUANT]`: models that LM Studio has fetched, read where they are: in OWNER/REPO/FILE.gguf."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localinfer.errors import ModelNotFound, UsageError
from localinfer.models.choice import chosen, models_among, wanted
from localinfer.models.stores import Listed, Progress, expanded, files_below, readable
from localinfer.options import Layer

TITLE = "LM Studio"
USUAL = ("~/.lmstudio", "~/.cache/lm-studio")  # its home, now and formerly
POINTER = "~/.lmstudio-home-pointer"  # has the path of another one in it


def folders() -> list[Path]:
    """What its settings name, then the usual place in each of its homes."""
    homes = list(map(expanded, USUAL))
    with suppress(OSError, UnicodeDecodeError):
        homes.insert(0, expanded(expanded(POINTER).read_text().strip()))
    places = []
    for home in homes:
        with suppress(OSError, ValueError, TypeError, KeyError):
            places.append(expanded(json.loads((home / "settings.json").read_bytes())["downloadsFolder"]))
        places.append(home / "models")
    return [place for place in dict.fromkeys(places) if place.is_absolute() and readable(place)]


def find(name: str) -> Path:
    what = wanted(name, "lmstudio")
    for folder in folders():
        if parts := chosen(files_below(folder / what.repo), what):
            return folder / what.repo / parts[0]
    where = " or ".join(map(str, folders())) or "a folder of LM Studio, which is not here"
    raise ModelNotFound(f"lmstudio:{name}: not in {where}")


def default_options(_: str) -> Layer:
    return {}


def listed() -> Iterator[Listed]:
    for folder in folders():
        for repo in sorted(each for each in folder.glob("*/*") if readable(each)):
            for name, parts in models_among(files_below(repo), repo.relative_to(folder).as_posix()).items():
                yield Listed.here(f"lmstudio:{name}", [repo / part for part in parts])


def fetch(name: str, _: Progress) -> Path:
    """Only LM Studio brings what is its own."""
    return find(name)


def removable(name: str) -> list[Path]:
    raise UsageError(f"lmstudio:{name}: {find(name)} belongs to LM Studio, which can remove it")
