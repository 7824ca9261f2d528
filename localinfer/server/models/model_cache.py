"""The model cache: the models that are loaded. It loads and unloads them; `model_queue` decides when."""

from pathlib import Path
from typing import TYPE_CHECKING

from localinfer.errors import LocalInferError, NotEnoughMemoryError
from localinfer.escaping import printable
from localinfer.hub import resolve
from localinfer.hub.projectors import media_kinds, projector_of
from localinfer.options import merge
from localinfer.server.http.api_errors import APIError
from localinfer.server.models.catalog import (
    Catalog,
    Load,
    ServedModel,
    default_name,
    local_model_names,
    model_file,
)

if TYPE_CHECKING:
    from localinfer.model import Model

__all__ = ["Load", "ModelCache", "ServedModel", "default_name", "local_model_names", "model_file"]

FileState = tuple[int, int, int]
GIB = 2**30


class ModelCache:
    """The loaded models by name. Several threads may call `open`, `media_kinds`, `served_models`, `find` and `resolve`,
    and nothing else.
    """

    def __init__(self, catalog: Catalog, load: Load) -> None:
        """`load` loads models that have no function of their own."""
        self.catalog, self._load = catalog, load
        self.loaded: dict[str, Model] = {}  # in order of use, the most recent last
        self._file_states: dict[str, FileState | None] = {}  # of the models' files when they were loaded
        self.n_batches = self.n_batched = 0  # of models that were unloaded: see ModelRunner

    def served_models(self) -> list[ServedModel]:
        """Return all models that a list of models shows."""
        return self.catalog.listed()

    @property
    def serves_all(self) -> bool:
        """Whether clients can request all models on this machine, also those that come later."""
        return self.catalog.serves_all

    def find(self, name: str) -> ServedModel | None:
        """Return the model with this name: see `Catalog.find`."""
        return self.catalog.find(name)

    def resolve(self, name: str | None) -> ServedModel:
        """Return the model that a request names. A server with one model uses it whatever the name is.

        Without a name, the most recently used model or else the default model applies. Raises APIError (404) if there
        is no such model.
        """
        if self.catalog.is_single:
            return self.catalog.all()[0]
        if not name and (served := self._most_recent() or self.catalog.default):
            return served
        if name and (served := self.find(name)):
            return served
        raise APIError(404, f"model: {printable(name or '', 100)} not found", "model", "model_not_found")

    def get(self, served: ServedModel) -> "Model":
        """Return the model; load it if needed. Raises what `localinfer.load` raises."""
        if served.name not in self.loaded:
            self.add(served, self.open(served))
        self.touch(served.name)
        return self.loaded[served.name]

    def open(self, served: ServedModel) -> "Model":
        """Load a model and return it, for `add`. Any thread may call this. Raises what `localinfer.load` raises."""
        return (served.load or self._load)(served.source)

    def add(self, served: ServedModel, model: "Model") -> None:
        """Put a model among the loaded ones."""
        self._file_states[served.name] = file_state(model.file.path)
        self.loaded[served.name] = model

    def touch(self, name: str) -> None:
        """Note that a model is used."""
        if name in self.loaded:
            self.loaded[name] = self.loaded.pop(name)  # it is the last one now

    def is_outdated(self, name: str) -> bool:
        """Return whether the file of a loaded model was replaced or changed. A file that is gone is not."""
        state = file_state(self.loaded[name].file.path)
        return state is not None and state != self._file_states[name]

    def remove(self, name: str) -> "Model | None":
        """Take a model from the loaded ones, for the caller to close; None if it is not loaded."""
        if model := self.loaded.pop(name, None):
            self.n_batches += model.engine.runner.n_batches
            self.n_batched += model.engine.runner.n_batched
        return model

    def media_kinds(self, served: ServedModel) -> frozenset[str]:
        """Return what a model reads beside text: "image", "audio", both or nothing. If it is not loaded, its options
        tell, and reading them takes time: call this in a thread.
        """
        if model := self.loaded.get(served.name):
            return model.media_kinds
        try:
            options = merge(served.options, resolve.default_options(served.source))
            return media_kinds(projector_of(served.source, resolve.find(served.source), options))
        except LocalInferError:  # a file is missing; loading the model tells which
            return frozenset()

    def required_bytes(self, served: ServedModel, limit: int) -> int:
        """Return the memory that a model will need; 0 if its function cannot tell, or if there is no limit (0).

        Raises NotEnoughMemoryError if it is more than the limit, and what opening the file raises.
        """
        needed = served.required_bytes(served.source) if served.required_bytes and limit else 0
        if needed > limit:
            what = f"needs {needed / GIB:.2f} GiB, --models-memory allows {limit / GIB:.2f} GiB"
            raise NotEnoughMemoryError(f"{printable(served.name, 100)}: {what}")
        return needed

    def close(self) -> None:
        for name in list(self.loaded):
            if model := self.remove(name):
                model.close()

    def _most_recent(self) -> ServedModel | None:
        names = list(self.loaded)  # at once: other threads may call this
        return self.find(names[-1]) if names else None


def file_state(path: Path) -> FileState | None:
    """Return what changes if a file is replaced or written; None if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
