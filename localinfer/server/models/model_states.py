"""What the server knows about each of its models, also while it is not loaded."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from localinfer.errors import LocalInferError
from localinfer.server.models.load_progress import LoadAttempt
from localinfer.server.models.model_cache import ModelCache, ServedModel

Status = Literal["unloaded", "loading", "loaded", "sleeping"]


@dataclass(slots=True, eq=False)
class ModelState:
    """What is known about a model, also while it is not loaded."""

    served: ServedModel
    n_users: int = 0  # requests that use the model
    n_bytes: int = 0  # memory of the loaded model
    is_leaving: bool = False  # it is unloaded once no request uses it, and gets no new requests
    is_victim: bool = False  # the same, as long as another model needs its memory
    closing: "asyncio.Task[None] | None" = None  # it is being unloaded
    is_asleep: bool = False  # it was unloaded because nobody used it
    error: Exception | None = None  # of the last attempt to load it
    attempt: LoadAttempt | None = None  # to load it, in progress

    @property
    def takes_requests(self) -> bool:
        """Whether a new request may use the model if it is loaded."""
        return not (self.is_leaving or self.is_victim or self.closing)


class ModelStates:
    """The states of models by name, and an event when one of them changes."""

    def __init__(self, model_cache: ModelCache) -> None:
        self._model_cache = model_cache
        self._states: dict[str, ModelState] = {}
        self._changed = asyncio.Event()  # replaced by a new one whenever it is set

    def __iter__(self) -> Iterator[ModelState]:
        return iter(self._states.values())

    def of(self, served: ServedModel) -> ModelState:
        """Return the state of a model."""
        state = self._states.setdefault(served.name, ModelState(served))
        if not self.is_loaded(state):
            state.served = served  # its options may be others now
        return state

    def of_loaded(self) -> list[ModelState]:
        """Return the states of the loaded models, in order of their use."""
        return [self._of_name(name) for name in self._model_cache.loaded]

    def known(self, name: str) -> ServedModel:
        """Return the model of this name as it is loaded, or else as it is listed."""
        return self._of_name(name).served

    def is_loaded(self, state: ModelState) -> bool:
        return state.served.name in self._model_cache.loaded

    def notify_change(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def _of_name(self, name: str) -> ModelState:
        """Return the state of a model, also of one that was loaded before the first request."""
        if name not in self._states:
            self._states[name] = ModelState(self._model_cache.find(name) or ServedModel(name, name))
        return self._states[name]


def exit_code(error: Exception) -> int:
    """Return the code with which a command would end that fails with this error."""
    return error.exit_code if isinstance(error, LocalInferError) else 1
