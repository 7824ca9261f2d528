"""The catalog: which models clients can request, by which names, and how each is loaded."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.hub import resolve
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.model import Model

Load = Callable[[str], "Model"]
Origin = Literal["preset", "models_dir", "cache"]  # llama.cpp's names for where a model comes from
LIST_SECONDS = 1.0  # for which a list of models is used, so that a request does not read directories several times
HUB = "hf:"  # names of llama.cpp lack this prefix


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients can request as `name` or by an alias; `source` is the name or path it is loaded from.

    `arguments` are the options that are its own, as words of a command line; `options` are all that it is loaded with,
    besides those of models.toml. `load` loads it, unless the model cache
    has one function for all models; `required_bytes` returns the memory that it will need. A time that is None is that
    of the server. A hidden model can be requested, but is not listed.
    """

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    origin: Origin = "preset"
    arguments: tuple[str, ...] = ()
    options: Layer = field(default_factory=dict, compare=False)
    sleep_idle_seconds: float | None = None
    stop_timeout: float | None = None  # seconds that running answers have when a client unloads the model
    load_on_startup: bool = False
    is_hidden: bool = False
    load: Load | None = field(default=None, compare=False)
    required_bytes: Callable[[str], int] | None = field(default=None, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))


class Catalog:
    """The models of a server. `list_models` returns them; it is called again when the last list is a second old.

    Threads may call the methods.
    """

    def __init__(
        self, list_models: Callable[[], Sequence[ServedModel]], *, serves_all: bool = False, is_fixed: bool = False,
        reread: Callable[[], None] | None = None, default: str = "",
    ) -> None:  # fmt: skip
        """`serves_all` means that the models on this machine belong to the list, `is_fixed` that the list never
        changes. `reread` is called before a reload. `default` is the name of the model for requests that name none;
        by default, the first one.
        """
        self.serves_all, self.is_fixed, self._default = serves_all, is_fixed, default
        self._list_models, self._reread = list_models, reread
        self._models: list[ServedModel] = []
        self._by_name: dict[str, ServedModel] = {}
        self._listed_at = float("-inf")

    @classmethod
    def fixed(cls, sources: Iterable[str]) -> "Catalog":
        """Return a catalog of names or paths of models, which never changes."""
        models = [ServedModel(default_name(each), each) for each in sources]
        return cls(lambda: models, is_fixed=True)

    @property
    def is_single(self) -> bool:
        """Whether there is one model and never another one."""
        return self.is_fixed and len(self.all()) == 1

    def all(self) -> list[ServedModel]:
        """Return all models, also hidden ones."""
        if not self._is_current(LIST_SECONDS):
            self._list()
        return self._models

    def listed(self) -> list[ServedModel]:
        """Return the models that a list of models shows, as they are now."""
        if not self._is_current(0):
            self._list()
        return [each for each in self._models if not each.is_hidden]

    def reload(self) -> None:
        """Read everything anew, also what is otherwise read once. Raises what `reread` raises."""
        if self._reread:
            self._reread()
        self._list()

    def forget(self) -> None:
        """List the models anew when they are needed next."""
        self._listed_at = float("-inf")

    def find(self, name: str) -> ServedModel | None:
        """Return the model with this name or alias, with or without the tag `latest`, with or without the prefix of
        the hub, or with its URL; None if there is none.
        """
        names = name, name.removesuffix(":latest"), resolve.normalize_hub_url(name), HUB + name
        self.all()
        if not any(each in self._by_name for each in names) and not self.is_fixed:
            self._list()  # it may be new
        return next((self._by_name[each] for each in names if each in self._by_name), None)

    @property
    def default(self) -> ServedModel | None:
        """The model for requests that name none."""
        models = self.all()
        return self._by_name.get(self._default) or (models[0] if models else None)

    def _is_current(self, seconds: float) -> bool:
        """Return whether the last list is still right, or at most so many seconds old."""
        age = time.monotonic() - self._listed_at
        return age < seconds or (self.is_fixed and bool(self._models))

    def _list(self) -> None:
        models = without_duplicates(self._list_models())
        self._models, self._by_name = models, {name: each for each in models for name in each.names}
        self._listed_at = time.monotonic()


def without_duplicates(models: Iterable[ServedModel]) -> list[ServedModel]:
    """Return the models without those whose name or alias an earlier one has."""
    taken: set[str] = set()
    kept = []
    for each in models:
        if taken.isdisjoint(each.names):
            kept.append(each)
            taken.update(each.names)
    return kept


def require_unique_names(models: Iterable[ServedModel]) -> None:
    """Raise UsageError if two models have a name in common."""
    source_by_name: dict[str, str] = {}
    for each in models:
        for name in each.names:
            if name in source_by_name:
                both = f"{printable(source_by_name[name], 200)} and {printable(each.source, 200)}"
                raise UsageError(f"{printable(name, 80)}: is the name of two models: {both}")
            source_by_name[name] = each.source


def default_name(source: str) -> str:
    """Return the name for clients: a known name as it is, else the file's name without `.gguf`."""
    return Path(source).name.removesuffix(".gguf") if resolve.resolve(source) is None else source


def local_model_names() -> list[str]:
    """Return the names of all completely downloaded models, those of models.toml first."""
    names = list(resolve.list_registry())
    with suppress(LocalInferError):
        names += [each.name for _, models in resolve.list_stores() for each in models if each.fraction == 1]
    return list(dict.fromkeys(names))


def model_file(served: ServedModel) -> Path | None:
    """Return the model's first file, or None if it is not on this machine."""
    try:
        return resolve.find(served.source)
    except LocalInferError:
        return None
