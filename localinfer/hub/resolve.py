"""Resolution of a model name or path to a file on this machine, through models.toml and the model stores.

    find("dir/model.gguf")       the path itself; models.toml is not read
    find("smollm2")              the file of a name in models.toml
    find("hf:owner/repo:Q8_0")   the file of a model store, a module that is imported on demand

Nothing here uses the network; `localinfer.hub.pull` downloads missing models.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, cast

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFoundError, UsageError
from localinfer.escaping import printable
from localinfer.hub import registry_store
from localinfer.hub.model_registry import ModelEntry, model_registry, user_registry_path
from localinfer.hub.model_store import ModelStore, NotDownloadedError, StoredModel, all_parts
from localinfer.hub.registry_store import existing_path
from localinfer.options import Layer

__all__ = [
    "ModelEntry",
    "NotDownloadedError",
    "Removal",
    "StoredModel",
    "default_options",
    "existing_path",
    "find",
    "list_registry",
    "list_stores",
    "model_registry",
    "normalize_hub_url",
    "plan_removal",
    "registry_entry",
    "resolve",
    "user_registry_path",
]  # fmt: skip

STORES = {"hf": "huggingface", "https": "web", "http": "web", "ollama": "ollama", "lmstudio": "lm_studio"}
URL_SCHEMES = ("https", "http")  # schemes that belong to the name
SCHEME = re.compile("|".join(f"{scheme}:" for scheme in STORES))
SLASHES = re.compile(r"^(hf|ollama|lmstudio)://")
NAME_LIKE = re.compile(r"(?!.*\.gguf$)[^/\\~\0]{1,64}")  # may be meant as a name
REPO_LIKE = re.compile(r"(?!\.{1,2}/|.*\.gguf$)[\w.-]+/[\w.-]+(:[\w.-]+)?", re.ASCII)
HUB_PAGE = re.compile(
    r"(?:https://)?(?:huggingface\.co|hf\.co)/(?P<name>[\w.-]+/[\w.-]+(?::[\w.-]+)?)"
    r"(?:/(?:(?:blob|resolve)/main(?P<file>/[^?#]+\.gguf)|tree/main))?/?(?:\?[^#]*)?",
    re.ASCII,
)


class ResolvedModel(NamedTuple):
    """A model store, the name of the model in it, and the options that models.toml adds."""

    store: ModelStore
    name: str
    options: Layer


def find(name_or_path: str | Path) -> Path:
    """Return the file of a name or path, the first one if the model is split.

    Raises ModelNotFoundError if it is missing; NotDownloadedError if `pull` can download it.
    """
    resolved = resolve(name_or_path)
    if resolved is None:
        return require_path(name_or_path)
    try:
        return resolved.store.find(resolved.name)
    except ModelNotFoundError as error:
        if isinstance(error, NotDownloadedError) and registry_entry(name_or_path):  # not the name of its source
            raise NotDownloadedError(f"{name_or_path}: not downloaded; run `localinfer pull {name_or_path}`") from None
        similar = nearest_names(str(name_or_path), [each.name for each in resolved.store.list_models()])
        raise type(error)(f"{error}; did you mean {similar[0]}?" if similar else str(error)) from None


def default_options(name_or_path: str | Path) -> Layer:
    """Return the options that belong to a name; none for a path."""
    resolved = resolve(name_or_path)
    return {} if resolved is None else resolved.store.default_options(resolved.name) | resolved.options


def resolve(name_or_path: str | Path) -> ResolvedModel | None:
    """Return the store of a name; None for a path. A known name takes precedence over a path.

    Raises ModelNotFoundError for a word that is neither a known name nor a file.
    """
    if isinstance(name_or_path, Path):
        return None
    name = normalize_hub_url(name_or_path)
    scheme, colon, suffix = name.partition(":")
    if colon and scheme in STORES:
        return ResolvedModel(load_store(scheme), name if scheme in URL_SCHEMES else suffix, {})
    entry = registry_entry(name)
    if entry is None:
        return None
    source = resolve(entry.source) if entry.source else None
    return source._replace(options=entry.options) if source else ResolvedModel(registry_store, name, {})


def registry_entry(name_or_path: str | Path) -> ModelEntry | None:
    """Return the entry of a name in models.toml; None for a path and for a name of another store.

    Raises ModelNotFoundError for a word that is neither a known name nor a file.
    """
    if isinstance(name_or_path, Path) or not NAME_LIKE.fullmatch(name_or_path) or SCHEME.match(name_or_path):
        return None
    known = model_registry().entries
    if name_or_path not in known and not Path(name_or_path).exists():
        raise ModelNotFoundError(f"{name_or_path}: neither a file nor a known model; {hint(name_or_path)}")
    return known.get(name_or_path)


def load_store(scheme: str) -> ModelStore:
    """Import the module of a store by its scheme."""
    return cast(ModelStore, importlib.import_module(f"localinfer.hub.{STORES[scheme]}"))


def normalize_hub_url(name: str) -> str:
    """Convert the URL of a Hugging Face page, and hf://NAME, to a name of the hub; others are returned unchanged."""
    name = SLASHES.sub(r"\1:", name)
    match = HUB_PAGE.fullmatch(name)
    return f"hf:{match['name']}{match['file'] or ''}" if match else name


def list_stores() -> Iterator[tuple[ModelStore, list[StoredModel]]]:
    """Yield each store with its models on this machine, except for models.toml."""
    for scheme in ("hf", "https", "ollama", "lmstudio"):
        store = load_store(scheme)
        yield store, list(store.list_models())


def list_registry() -> dict[str, StoredModel]:
    """Return the models of models.toml that are on this machine, by name."""
    stored = {each.name: each for each in registry_store.list_models()}
    for entry in model_registry().entries.values():
        if entry.source:
            with suppress(LocalInferError):
                stored[entry.name] = StoredModel.complete(entry.name, all_parts(find(entry.source)))
    return stored


def hint(name: str) -> str:
    """Return the known names that begin with the name or are most similar, for an error message."""
    known = list(model_registry().entries)
    candidates = known + [each.name for _, models in list_stores() for each in models]
    longer = [each for each in candidates if len(name) > 1 and each.lower().startswith(name.lower())]
    similar = list(dict.fromkeys([*longer, *nearest_names(name, candidates, n=3, cutoff=0.5)]))[:3]
    return f"did you mean {' or '.join(similar)}?" if similar else f"known are {', '.join(known)}"


def nearest_names(name: str, known: Sequence[str], n: int = 1, cutoff: float = 0.7) -> list[str]:
    """Return the most similar known names, best first, compared with and without their scheme."""
    names_by_lowercase = {key.lower(): each for each in reversed(known) for key in (each.partition(":")[2], each)}
    return list(
        dict.fromkeys(
            names_by_lowercase[match] for match in get_close_matches(name.lower(), names_by_lowercase, n, cutoff)
        )
    )


def require_path(path: str | Path) -> Path:
    """Return an existing path. Raises ModelNotFoundError with a hint if the path looks like a name."""
    try:
        return existing_path(Path(path))
    except ModelNotFoundError as error:
        if isinstance(path, str) and REPO_LIKE.fullmatch(path):
            raise ModelNotFoundError(f"{error}; for a Hugging Face repository use hf:{path}") from None
        scheme, colon, suffix = str(path).partition(":")
        if colon and (similar := get_close_matches(scheme, STORES, n=1)):
            raise ModelNotFoundError(f"{error}; did you mean {similar[0]}:{printable(suffix, 200)}?") from None
        raise


class Removal(NamedTuple):
    """The files that belong to a model; `size` is in bytes without links."""

    files: list[Path]
    size: int
    roots: list[Path]

    def delete(self) -> None:
        """Delete the files, and the directories that become empty."""
        for file in self.files:
            file.unlink(missing_ok=True)
        for folder in [parent for file in self.files for parent in file.parents]:
            if any(root in folder.parents for root in self.roots):
                with suppress(OSError):  # not empty
                    folder.rmdir()


def plan_removal(name: str) -> Removal:
    """Return the files that localinfer may delete for a model.

    Raises ModelNotFoundError; UsageError if the files belong to the user or another program.
    """
    resolved = resolve(name)
    if resolved is None:
        raise UsageError(f"{require_path(name)}: your own file, which localinfer does not remove")
    files = list(dict.fromkeys(resolved.store.removable_files(resolved.name)))
    if not files:
        resolved.store.find(resolved.name)
        raise ModelNotFoundError(f"{name}: not on this machine")
    size = sum(file.lstat().st_size for file in files if not file.is_symlink())
    return Removal(files, size, [*resolved.store.directories(), paths.models_dir()])
