"""From the word that a user typed to a model on this machine: in models.toml, or in one of the stores.

    find("dir/model.gguf")       that very file; models.toml is not even opened
    find("smollm2")              the file of a name in models.toml
    find("hf:owner/repo:Q8_0")   likewise of a store: STORES has them, each a module that is imported when it is needed

Asks nobody but the disk: what is not here is for `fetch` to bring.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, cast

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFound, UsageError
from localinfer.models import names
from localinfer.models.catalogue import Entry, catalogue, user_toml
from localinfer.models.names import existing
from localinfer.models.stores import Listed, NotFetched, Store, siblings
from localinfer.options import Layer
from localinfer.text import printable

__all__ = [
    "Entry", "Listed", "NotFetched", "Removal", "as_hub_name", "catalogue", "default_options", "existing", "find",
    "listed", "listed_names", "named", "placed", "removal", "user_toml",
]  # fmt: skip

STORES = {"hf": "hub", "https": "web", "http": "web", "ollama": "ollama", "lmstudio": "lm_studio"}
ADDRESSES = ("https", "http")  # schemes that are part of the name
SCHEME = re.compile("|".join(f"{scheme}:" for scheme in STORES))
NAME_LIKE = re.compile(r"(?!.*\.gguf$)[^/\\~\0]{1,64}")  # what a user typed and may have meant as a name
REPO_LIKE = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", re.ASCII)
HUB_PAGE = re.compile(
    r"(?:https://)?(?:huggingface\.co|hf\.co)/(?P<name>[\w.-]+/[\w.-]+(?::[\w.-]+)?)"
    r"(?:/(?:(?:blob|resolve)/main(?P<file>/[^?#]+\.gguf)|tree/main))?/?(?:\?[^#]*)?",
    re.ASCII,
)


class Placed(NamedTuple):
    """A store, what it calls the model, and what models.toml adds to its options."""

    store: Store
    name: str
    options: Layer


def find(name_or_path: str | Path) -> Path:
    """The file that a name or a path stands for, the first one where a model has several.

    Raises ModelNotFound when it is not there; NotFetched if `fetch` could bring it.
    """
    place = placed(name_or_path)
    if place is None:
        return existing_or_hint(name_or_path)
    try:
        return place.store.find(place.name)
    except ModelNotFound as missing:
        near = nearest(str(name_or_path), [each.name for each in place.store.listed()])
        raise type(missing)(f"{missing}; did you mean {near[0]}?" if near else str(missing)) from None


def default_options(name_or_path: str | Path) -> Layer:
    """The options that come with a name; none with a path."""
    place = placed(name_or_path)
    return {} if place is None else place.store.default_options(place.name) | place.options


def placed(name_or_path: str | Path) -> Placed | None:
    """Where a name belongs; None for a path. What could be both is a name if that is known, else a path.

    Raises ModelNotFound for a word that is neither a known name nor a file.
    """
    if isinstance(name_or_path, Path):
        return None
    name = as_hub_name(name_or_path)
    scheme, colon, rest = name.partition(":")
    if colon and scheme in STORES:
        return Placed(store_of(scheme), name if scheme in ADDRESSES else rest, {})
    entry = named(name)
    source = placed(entry.source) if entry and entry.source else None
    return source._replace(options=entry.options) if entry and source else Placed(names, name, {}) if entry else None


def named(name_or_path: str | Path) -> Entry | None:
    """The entry of a name in models.toml; None for a path, and for what is in a store.

    Raises ModelNotFound for a word that is neither a known name nor a file.
    """
    if isinstance(name_or_path, Path) or not NAME_LIKE.fullmatch(name_or_path) or SCHEME.match(name_or_path):
        return None
    known = catalogue().entries
    if name_or_path not in known and not Path(name_or_path).exists():
        raise ModelNotFound(f"{name_or_path}: neither a file nor a known model; {hint(name_or_path)}")
    return known.get(name_or_path)


def store_of(scheme: str) -> Store:
    return cast(Store, importlib.import_module(f"localinfer.models.{STORES[scheme]}"))


def as_hub_name(name: str) -> str:
    """Pages of the hub, as a browser or Ollama has their addresses, are names of the hub."""
    found = HUB_PAGE.fullmatch(name)
    return f"hf:{found['name']}{found['file'] or ''}" if found else name


def listed() -> Iterator[tuple[Store, list[Listed]]]:
    """All models of all stores that are on this machine, but for those of models.toml."""
    for scheme in ("hf", "https", "ollama", "lmstudio"):
        store = store_of(scheme)
        yield store, list(store.listed())


def listed_names() -> dict[str, Listed]:
    """What is on this machine of the models of models.toml."""
    here = {each.name: each for each in names.listed()}
    for entry in catalogue().entries.values():
        if entry.source:
            with suppress(LocalInferError):
                here[entry.name] = Listed.here(entry.name, siblings(find(entry.source)))
    return here


def hint(name: str) -> str:
    """Which known name was probably meant."""
    known = list(catalogue().entries)
    near = nearest(name, known + [each.name for _, models in listed() for each in models], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"


def nearest(name: str, known: Sequence[str], n: int = 1, cutoff: float = 0.7) -> list[str]:
    """The known names that are most like it, with what stands before the colon or without, the best first."""
    spellings = {spelling.lower(): each for each in reversed(known) for spelling in (each.partition(":")[2], each)}
    return list(dict.fromkeys(spellings[near] for near in get_close_matches(name.lower(), spellings, n, cutoff)))


def existing_or_hint(path: str | Path) -> Path:
    try:
        return existing(Path(path))
    except ModelNotFound as missing:
        if isinstance(path, str) and REPO_LIKE.fullmatch(path):
            raise ModelNotFound(f"{missing}; a repository of the hub would be hf:{path}") from None
        scheme, colon, rest = str(path).partition(":")
        if colon and (near := get_close_matches(scheme, STORES, n=1)):
            raise ModelNotFound(f"{missing}; did you mean {near[0]}:{printable(rest, 200)}?") from None
        raise


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model would take away; `size` in bytes, of which links have none."""

    files: list[Path]
    size: int
    roots: list[Path]

    def carry_out(self) -> None:
        """Delete the files, and directories that are empty then."""
        for file in self.files:
            file.unlink(missing_ok=True)
        for folder in [parent for file in self.files for parent in file.parents]:
            if any(root in folder.parents for root in self.roots):
                with suppress(OSError):  # there is more in it
                    folder.rmdir()


def removal(name: str) -> Removal:
    """What is ours of a model. Raises ModelNotFound; UsageError for what is not ours."""
    place = placed(name)
    if place is None:
        raise UsageError(f"{existing_or_hint(name)}: is a file of your own")
    files = list(dict.fromkeys(place.store.removable(place.name)))
    if not files:
        place.store.find(place.name)
        raise ModelNotFound(f"{name}: nothing of it is here")
    size = sum(file.lstat().st_size for file in files if not file.is_symlink())
    return Removal(files, size, [*place.store.folders(), paths.models_dir()])
