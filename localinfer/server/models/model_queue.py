"""The model queue: loads models for requests, and unloads others that have to make room.

    async with models.use(served) as model:   # waits until it is loaded; meanwhile nothing unloads it
        ...

Models are loaded one at a time, in the order in which requests came; requests for the same model wait for one load. If
there are too many models, or too little memory, the least recently used one is unloaded that no request uses. If all
are in use, the least recently used one gets no new requests until it is unloaded.

All methods are for the event loop's thread. Files are read and closed in other threads.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from localinfer.errors import NotEnoughMemoryError
from localinfer.escaping import printable
from localinfer.server.http.api_errors import APIError
from localinfer.server.models.load_progress import LoadAttempt, LoadCancelled
from localinfer.server.models.model_cache import ModelCache, ServedModel
from localinfer.server.models.model_events import ModelEvents
from localinfer.server.models.model_states import ModelState, ModelStates, Status, exit_code

if TYPE_CHECKING:
    from localinfer.model import Model



class Abandoned(Exception):
    """No request waits for the model any more."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Requests that wait until a model is loaded. When `done` has a result, all of them are users of the model."""

    state: ModelState
    done: "asyncio.Future[None]"
    n_requests: int = 0


class ModelQueue:
    """Loads at most `max_loaded` models (0: any number), whose memory is at most `max_bytes` (0: what there is)."""

    def __init__(self, model_cache: ModelCache, max_loaded: int, max_bytes: int = 0) -> None:
        self.model_cache, self.events = model_cache, ModelEvents()
        self._max_loaded, self._max_bytes = max_loaded, max_bytes
        self.states = ModelStates(model_cache)
        self._waiting: dict[str, Waiting] = {}  # models to load, in order
        self._worker: asyncio.Task[None] | None = None  # loads them
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loading = asyncio.Lock()  # held while a model is loaded, or when none may be
        self._loader, self._closer = ThreadPoolExecutor(1, "loader"), ThreadPoolExecutor(1, "closer")

    def status(self, served: ServedModel) -> Status:
        """Return the status of a model, in llama.cpp's terms."""
        state = self.states.of(served)
        if self.states.is_loaded(state):
            return "loaded"
        if state.attempt or served.name in self._waiting:
            return "loading"
        return "sleeping" if state.is_asleep else "unloaded"

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait for a model."""
        return sum(each.n_requests for each in self._waiting.values())

    # --- use ---

    @asynccontextmanager
    async def use(self, served: ServedModel) -> "AsyncIterator[Model]":
        """Wait until a model is loaded; load it if needed. Within the context, nothing unloads it.

        Raises what `localinfer.load` raises, and APIError (400) if the load is cancelled.
        """
        state = self.states.of(served)
        if self._is_ready(state):
            state.n_users += 1
        else:
            await self._wait_until_loaded(state)
        self.model_cache.touch(served.name)
        try:
            yield self.model_cache.loaded[served.name]
        finally:
            if closing := self._release(state):
                await asyncio.shield(closing)  # the request may be cancelled

    async def _wait_until_loaded(self, state: ModelState) -> None:
        """Wait until the model is loaded and this request is one of its users."""
        name = state.served.name
        if name not in self._waiting:
            self._waiting[name] = Waiting(state, asyncio.get_running_loop().create_future())
        waiting = self._waiting[name]
        waiting.n_requests += 1
        self._worker = self._worker or asyncio.create_task(self._load_waiting())
        try:
            await asyncio.shield(waiting.done)
        except BaseException:
            waiting.n_requests -= 1
            if has_result(waiting.done):
                self._release(state)
            self.states.notify_change()
            raise

    def _release(self, state: ModelState) -> "asyncio.Future[None] | None":
        """Note that a request does not use the model any more. Return what is done when that has unloaded it."""
        state.n_users -= 1
        self.model_cache.touch(state.served.name)
        self.states.notify_change()
        return self._unload(state) if state.is_leaving and not state.n_users else None

    def _is_ready(self, state: ModelState) -> bool:
        """Return whether a new request may use the model. One whose file has changed is loaded again."""
        if not self.states.is_loaded(state) or not state.takes_requests:
            return False
        if self.model_cache.is_outdated(state.served.name):
            self.unload(state.served)
            return False
        return True

    # --- unloading ---

    def unload(self, served: ServedModel) -> None:
        """Begin to unload a model, or cancel its load. Answers that it gives end first."""
        state = self.states.of(served)
        if self.states.is_loaded(state):
            state.is_leaving = True
            if not state.n_users:
                self._unload(state)
        elif state.attempt:
            state.attempt.cancel()
        elif waiting := self._waiting.pop(served.name, None):
            fail(waiting.done, cancelled(served))

    def unload_if_idle(self, served: ServedModel, *, asleep: bool) -> bool:
        """Begin to unload a model, unless a request uses it or waits for it. Return whether it is unloaded then."""
        state = self.states.of(served)
        if state.n_users or state.attempt or served.name in self._waiting:
            return False
        if self.states.is_loaded(state):
            self._unload(state, asleep=asleep)
        return True

    @asynccontextmanager
    async def without(self, served: ServedModel) -> AsyncIterator[None]:
        """Unload a model, once no request uses it. Within the context, no model is loaded."""
        state = self.states.of(served)
        async with self._loading:
            state.is_leaving = True
            try:
                while state.n_users:
                    await self.states.wait_for_change()
                await asyncio.shield(self._unload(state))
                yield
            finally:
                state.is_leaving = False
                self.states.notify_change()

    def _unload(self, state: ModelState, *, asleep: bool = False) -> "asyncio.Future[None]":
        """Begin to unload a model that no request uses. The future is done when its memory is free."""
        if state.closing is None:
            state.is_leaving, state.is_victim, state.is_asleep = False, False, asleep
            if model := self.model_cache.remove(state.served.name):
                state.closing = self.begin(self._close(state, model, asleep=asleep))
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return state.closing or done

    async def _close(self, state: ModelState, model: "Model", *, asleep: bool) -> None:
        run = asyncio.get_running_loop().run_in_executor
        try:
            await run(self._closer, model.close)
            del model
            await run(self._closer, gc.collect)  # frees its reference cycles
        finally:
            state.closing, state.n_bytes = None, 0
            self.states.notify_change()
        data = {"status": "sleeping"} if asleep else {"status": "unloaded", "exit_code": 0}
        self.events.notify("model_status", state.served.name, data)

    # --- loading ---

    async def _load_waiting(self) -> None:
        """Load the models that requests wait for, one after the other."""
        while self._waiting:
            name, waiting = next(iter(self._waiting.items()))
            state = waiting.state
            try:
                async with self._loading:
                    await self._load(state, waiting)
            except LoadCancelled:
                fail(waiting.done, cancelled(state.served))
                self._report_failure(state, None)
            except Abandoned:
                waiting.done.cancel()
            except Exception as error:
                fail(waiting.done, error)
                self._report_failure(state, error)
            else:
                if not waiting.done.done():
                    state.n_users += waiting.n_requests
                    waiting.done.set_result(None)
            if self._waiting.get(name) is waiting:
                del self._waiting[name]
        self._worker = None

    async def _load(self, state: ModelState, waiting: Waiting) -> None:
        """Load a model as soon as there is room for it. Raises Abandoned if no request waits for it any more."""
        while state.is_leaving or state.closing:
            await self.states.wait_for_change()
        if self.states.is_loaded(state):
            return
        if not waiting.n_requests:
            raise Abandoned
        run, served = asyncio.get_running_loop().run_in_executor, state.served
        needed = await run(self._loader, self.model_cache.required_bytes, served, self._max_bytes)
        await self._make_room(waiting, lambda: self._is_full(needed))
        while True:
            try:
                model = await self._open(state)
                break
            except NotEnoughMemoryError:
                if not self.model_cache.loaded:
                    raise
                limit = len(self.model_cache.loaded)
                await self._make_room(waiting, partial(is_at_least, limit, self.model_cache.loaded))
        self.model_cache.add(served, model)
        state.error, state.is_asleep, state.n_bytes = None, False, needed
        self.events.notify("model_status", served.name, {"status": "loaded"})

    async def _open(self, state: ModelState) -> "Model":
        """Load a model in the thread of the loader."""
        loop, served = asyncio.get_running_loop(), state.served

        def on_progress(fraction: float) -> None:
            progress = {"stages": ["text_model"], "current": "text_model", "value": fraction}
            data = {"status": "loading", "progress": progress}
            loop.call_soon_threadsafe(self.events.notify, "model_status", served.name, data)

        def open_model() -> "Model":
            with attempt.watched():
                return self.model_cache.open(served)

        state.attempt = attempt = LoadAttempt(on_progress)
        self.events.notify("model_status", served.name, {"status": "loading"})
        try:
            return await loop.run_in_executor(self._loader, open_model)
        finally:
            state.attempt = None

    def _is_full(self, needed: int) -> bool:
        """Return whether another model that needs so much memory is one too many."""
        too_many = 0 < self._max_loaded <= len(self.model_cache.loaded)
        n_bytes = sum(each.n_bytes for each in self.states.of_loaded())
        return too_many or 0 < self._max_bytes < n_bytes + needed

    async def _make_room(self, waiting: Waiting, is_full: Callable[[], bool]) -> None:
        """Unload models until there is room. Raises Abandoned if no request waits for it any more."""
        try:
            while is_full() or any(each.closing for each in self.states):
                if not waiting.n_requests:
                    raise Abandoned
                others = self.states.of_loaded()
                idle = [each for each in others if not each.n_users]
                if is_full() and idle:
                    await asyncio.shield(self._unload(idle[0]))
                    continue
                if is_full() and others and not any(each.is_leaving or each.is_victim for each in others):
                    others[0].is_victim = True
                await self.states.wait_for_change()
        finally:
            for each in self.states:
                each.is_victim = False

    def _report_failure(self, state: ModelState, error: Exception | None) -> None:
        """Note that a model was not loaded; without an error, its load was cancelled."""
        state.error = error
        data = {"status": "unloaded", "exit_code": exit_code(error) if error else 0}
        self.events.notify("model_status", state.served.name, data)

    def close(self) -> None:
        """Cancel the load in progress, and end the threads."""
        for state in self.states:
            if state.attempt:
                state.attempt.cancel()
        for executor in (self._loader, self._closer):
            executor.shutdown(wait=False, cancel_futures=True)

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a coroutine as a task of its own. What it raises is noted in the state of the model."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda each: each.cancelled() or each.exception())
        return task


def is_at_least(limit: int, loaded: Sized) -> bool:
    return len(loaded) >= limit


def has_result(done: "asyncio.Future[None]") -> bool:
    return done.done() and not done.cancelled() and done.exception() is None


def fail(done: "asyncio.Future[None]", error: Exception) -> None:
    """Let all requests that wait fail with this error."""
    if not done.done():
        done.set_exception(error)
        done.exception()  # there may be no request any more


def cancelled(served: ServedModel) -> APIError:
    return APIError(400, f"model: {printable(served.name, 100)} was unloaded while it was loading", "model")
