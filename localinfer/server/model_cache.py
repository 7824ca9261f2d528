"""The model cache: resolves model names, loads models and evicts the least recently used."""

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localinfer.errors import LocalInferError, NotEnoughMemoryError
from localinfer.escaping import printable
from localinfer.hub import resolve
from localinfer.server.api_errors import APIError

if TYPE_CHECKING:
    from localinfer.model import Model

Load = Callable[[str], "Model"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients can request as `name`; `source` is the name or path it is loaded from."""

    name: str
    source: str
    aliases: Sequence[str] = ()


class ModelCache:
    """Serves the models of `sources`, which are names or paths; if empty, all models on this machine.

    At most `max_loaded` models are loaded, fewer if memory does not suffice. The least recently used model is evicted.
    The methods that load or unload hold a lock.
    """

    def __init__(
        self,
        sources: Sequence[str],
        load: Load,
        max_loaded: int = 1,
        aliases: Sequence[str] = (),
        presets: Mapping[ServedModel, Load] | None = None,
    ) -> None:
        """`aliases` are the names of a single model. `presets` are further models, with the functions that load them.
        """
        served = [
            ServedModel(aliases[0] if aliases else default_name(source), source, tuple(aliases)) for source in sources
        ]
        self._loads = {**dict.fromkeys(served, load), **(presets or {})}
        self._configured = {each.name: each for each in self._loads}
        self._load = load
        self._max_loaded = max_loaded
        self._lock = threading.Lock()
        self.loaded: dict[str, Model] = {}  # in order of use, the most recent last
        self.used_at: dict[str, float] = {}  # Unix time of the last use
        self.n_batches = self.n_batched = 0  # of models that were unloaded: see ModelRunner

    def served_models(self) -> list[ServedModel]:
        """Return all models that a client can request."""
        return list(self._configured.values()) or [ServedModel(name, name) for name in local_model_names()]

    @property
    def serves_all(self) -> bool:
        """Whether clients can request all models on this machine, also those that come later."""
        return not self._configured

    def find(self, name: str) -> ServedModel | None:
        """Return the model with this name, with or without the tag `latest`, or with this URL of the hub; None if there
        is none.
        """
        by_name = {each.name: each for each in self.served_models()}
        names = name, name.removesuffix(":latest"), resolve.normalize_hub_url(name)
        return next((by_name[each] for each in names if each in by_name), None)

    def resolve(self, name: str | None) -> ServedModel:
        """Return the model that a request names. A server with one model uses it whatever the name is.

        Without a name, the most recently used model or else the default model applies. Raises APIError (404) if there
        is no such model.
        """
        if len(self._configured) == 1 or (self._configured and not name):
            return next(iter(self._configured.values()))
        if not name:
            name = next(reversed(self.loaded), None) or resolve.model_registry().default
        if served := self.find(name):
            return served
        raise APIError(404, f"model: {printable(name, 100)} not found", "model", "model_not_found")

    def get(self, served: ServedModel) -> "Model":
        """Return the model; load it if needed. Raises what `localinfer.load` raises."""
        with self._lock:
            model = self.loaded.pop(served.name, None) or self._load_with_eviction(served)
            self.loaded[served.name] = model
            self.used_at[served.name] = time.time()
            return model

    def unload(self, name: str) -> None:
        """Unload a model if it is loaded."""
        with self._lock:
            self._evict(name)

    def close(self) -> None:
        for name in list(self.loaded):
            self.unload(name)

    def _load_with_eviction(self, served: ServedModel) -> "Model":
        """Load a model, evicting others as far as `max_loaded` or the available memory requires."""
        while len(self.loaded) >= self._max_loaded:
            self._evict(next(iter(self.loaded)))
        while True:
            try:
                return self._loads.get(served, self._load)(served.source)
            except NotEnoughMemoryError:
                if not self.loaded:
                    raise
                self._evict(next(iter(self.loaded)))

    def _evict(self, name: str) -> None:
        """Close a model if it is loaded. The garbage collection frees its reference cycles at once."""
        if model := self.loaded.pop(name, None):
            self.n_batches += model.engine.runner.n_batches
            self.n_batched += model.engine.runner.n_batched
            model.close()
            del model
            gc.collect()


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
