"""The dispatcher: gives each request a slot and a model.

    async with dispatcher.lease("smollm2") as lease:
        async with lease.generate(ChatPrompt(messages), {"temp": 0.0}) as generation:
            async for piece in generation.pieces: ...
        generation.finish_reason, generation.stats

This module does not depend on HTTP. All API endpoints and `localinfer.batch` use it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from localinfer.server.http.api_errors import APIError
from localinfer.server.lease import Lease, Observer
from localinfer.server.models.idle_timers import IdleTimers
from localinfer.server.models.model_cache import ModelCache, ServedModel
from localinfer.server.models.model_queue import ModelQueue
from localinfer.server.prompt_history import PromptHistory
from localinfer.server.requests.answer_memory import AnswerMemory
from localinfer.server.requests.model_query import autoload, requested_model
from localinfer.server.settings import Settings
from localinfer.server.slots import Slot, SlotPool, SlotStopped

if TYPE_CHECKING:
    from localinfer.model import Model

T = TypeVar("T")


def stop_running(used: "Sequence[tuple[Slot, Model | None]]") -> None:
    """Stop the slots that still use these models."""
    for slot, model in used:
        if slot.model is model:
            slot.stop()


class Dispatcher:
    """Assigns slots and models to requests.

    Requests for the same model run concurrently, up to the number of slots and the model's `parallel` option.
    """

    def __init__(self, model_cache: ModelCache, settings: Settings) -> None:
        self.model_cache = model_cache
        self.settings = settings
        self.models = ModelQueue(model_cache, settings.models_max, settings.models_memory)
        self.slots = SlotPool(settings.parallel, settings.queue)
        self.observer: Observer | None = None
        self.prompts: PromptHistory | None = None
        self.answers: AnswerMemory | None = None
        self._background = ThreadPoolExecutor(1, "background")
        self._released = asyncio.Event()  # set when a slot stops using its model
        self.properties: dict[str, dict[str, Any]] = {}  # of models by name, as `/props` returns them
        self.describe: Callable[[ServedModel, Model, Dispatcher], object] | None = None  # fills `properties`
        self.idle_timers = IdleTimers(self.models, settings.sleep_idle_seconds)
        self.unload_times = self.idle_timers.unload_times  # when each idle model will be unloaded
        self._turns: dict[tuple[str, int], asyncio.Semaphore] = {}  # of models with fewer sequences than slots

    @asynccontextmanager
    async def lease(self, name: str | None, slot_number: int = -1) -> AsyncIterator[Lease]:
        """Wait for the model, which is loaded if needed, then for a free slot. The slot is the one with this number if
        it is free.

        Raises APIError if the queue is full, the wait exceeds `settings.timeout`, or the model is unknown or must not
        be loaded, and whatever loading raises.
        """
        arrival = perf_counter()
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        async with (
            self.using(name) as (served, model), self._turn(served.name, model.parallel),
            self.slots.acquire(self.settings.timeout, slot_number) as slot,
        ):  # fmt: skip
            while self._n_busy(served.name) >= model.parallel:  # further choices of a request take no turns
                await self._wait_for_release()
            if self.observer:
                self.observer.on_slot_acquired(perf_counter() - arrival)
            with self._in_use(model.concurrent(slot.number) if model.parallel > 1 else model, slot, served.name) as own:
                yield Lease(
                    slot, own, served.name, deadline, arrival, self.observer, self.prompts, self.answers,
                    self.settings.media_access,
                )  # fmt: skip

    @asynccontextmanager
    async def using(self, name: str | None) -> "AsyncIterator[tuple[ServedModel, Model]]":
        """Wait for a model, which is loaded if needed. Within the context, nothing unloads it. It is for operations
        without evaluation, such as tokenizing; `lease` gives a slot to evaluate tokens in.

        Raises what `lease` raises.
        """
        served = await self.resolve(name or requested_model.get())
        self._require_admission(served)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self.settings.timeout):
                    model = await stack.enter_async_context(self.models.use(served))
            except TimeoutError:
                problem = f"the model was not loaded within {self.settings.timeout:.0f} s"
                raise APIError(503, problem, code="busy") from None
            model.engine.compiled_graph.idle_work.add(self.slots.bridge.pending, self.slots.bridge.wake)
            self.idle_timers.cancel(served.name)
            if self.describe and served.name not in self.properties:
                self.describe(served, model, self)
            try:
                yield served, model
            finally:
                self.idle_timers.sleep_when_idle(served)

    async def resolve(self, name: str | None) -> ServedModel:
        """Return the model that a request names: see `ModelCache.resolve`. A list of models that can change is read in
        a thread."""
        if self.model_cache.catalog.is_fixed:
            return self.model_cache.resolve(name)
        return await asyncio.to_thread(self.model_cache.resolve, name)

    def _require_admission(self, served: ServedModel) -> None:
        """Raise APIError unless the request may use the model: one that is not loaded may need permission to be."""
        status = self.models.status(served)
        may_load = self.settings.models_autoload if (wish := autoload.get()) is None else wish
        if status == "unloaded" and not may_load and not self.model_cache.catalog.is_single:
            raise APIError(400, "model is not loaded", "model")
        if status != "loaded" and self.models.n_waiting > self.settings.queue:
            n_waiting = self.models.n_waiting
            raise APIError(503, f"the server is busy and its queue is full ({n_waiting} requests)", code="busy")

    def _turn(self, name: str, n_sequences: int) -> AbstractAsyncContextManager[None]:
        """Return a context in which at most so many requests use the model at a time."""
        if n_sequences >= len(self.slots.all):
            return nullcontext()
        return self._turns.setdefault((name, n_sequences), asyncio.Semaphore(n_sequences))

    def can_lease_another(self, lease: Lease) -> bool:
        """Return whether a further slot and a further sequence of the lease's model are free and no other request
        waits.
        """
        is_contended = self.models.n_waiting or not self.slots.has_free_slot
        return not is_contended and self._n_busy(lease.name) < lease.model.parallel

    @asynccontextmanager
    async def lease_another(self, lease: Lease) -> AsyncIterator[Lease]:
        """Lease a further slot with the same model for the same request.

        Returns without waiting if `can_lease_another` is true.
        """
        async with self.slots.acquire(self.settings.timeout) as slot:
            concurrent = self.model_cache.loaded[lease.name].concurrent(slot.number)
            with self._in_use(concurrent, slot, lease.name) as model:
                yield replace(lease, slot=slot, model=model)

    @contextmanager
    def _in_use(self, model: "Model", slot: Slot, name: str) -> "Iterator[Model]":
        slot.model, slot.model_name = model, name
        try:
            yield model
        finally:
            slot.model, slot.model_name = None, ""
            self._released.set()

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait for a slot or for their model."""
        return self.slots.n_waiting + self.models.n_waiting

    def _n_busy(self, name: str) -> int:
        """Return the number of slots that use a model."""
        return sum(slot.model_name == name for slot in self.slots.all)

    async def _wait_for_release(self) -> None:
        self._released.clear()
        await self._released.wait()

    def load(self, served: ServedModel) -> None:
        """Begin to load a model, without waiting."""

        async def load() -> None:
            async with self.models.use(served):
                self.idle_timers.sleep_when_idle(served)

        self.models.begin(load())

    async def unload(self, lease: Lease) -> None:
        """Unload the lease's model when this request and those that already use it have ended."""
        self.models.unload(self.models.states.known(lease.name))

    def request_unload(self, served: ServedModel) -> None:
        """Begin to unload a model, after its answers have ended; those that take longer than its `stop_timeout` are
        cut off."""
        self.idle_timers.cancel(served.name)
        self.models.unload(served)
        if served.stop_timeout is not None:
            running = [(slot, slot.model) for slot in self.slots.all if slot.model_name == served.name]
            asyncio.get_running_loop().call_later(served.stop_timeout, stop_running, running)

    @asynccontextmanager
    async def unloaded(self, name: str) -> AsyncIterator[None]:
        """Unload a model, once no request uses it. Within the context, no model is loaded."""
        async with self.models.without(self.models.states.known(name)):
            self.idle_timers.cancel(name)
            yield

    def keep_alive(self, name: str, seconds: float | None) -> None:
        """Unload a model once it is idle for so many seconds; None keeps it until another model needs its memory."""
        self.idle_timers.keep_alive(self.models.states.known(name), seconds)

    async def find_model(self, name: str | None) -> "tuple[ServedModel, Model]":
        """Return the model, which is loaded if needed. This is no use of a loaded model, which `using` is: nothing
        keeps it loaded, and it sleeps as if nobody had asked.
        """
        served = await self.resolve(name or requested_model.get())
        if model := self.model_cache.loaded.get(served.name):
            return served, model
        async with self.using(served.name) as (served, model):
            return served, model

    async def run_in_background(self, work: Callable[[Callable[[], None]], T]) -> T:
        """Run work without evaluation in a thread, one at a time, so that its memory is bounded.

        `work` receives a function, which it calls often: that raises if the request has ended. Raises APIError (503) if
        the work takes longer than `settings.timeout`.
        """
        is_stopped = threading.Event()

        def stop_if_ended() -> None:
            if is_stopped.is_set():
                raise SlotStopped

        def work_unless_ended() -> T:
            stop_if_ended()
            return work(stop_if_ended)

        done = asyncio.get_running_loop().run_in_executor(self._background, work_unless_ended)
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.shield(done)
        except TimeoutError:
            raise APIError(503, "the request took too long", code="timeout") from None
        finally:
            is_stopped.set()
            done.add_done_callback(lambda each: each.cancelled() or each.exception())  # it has been retrieved

    def close(self) -> None:
        self._background.shutdown(wait=False, cancel_futures=True)
        self.models.close()
        self.slots.close()
        self.model_cache.close()
