"""Slots: each has a worker thread that computes one sequence, and requests queue for a free one.

    async with slots.acquire(timeout=60) as slot:
        model = await slot.call(load)                            # runs in the slot's thread
        async with aclosing(slot.iterate(pieces)) as received:   # computed in the slot's thread, received here
            async for piece in received: ...

A slot is free again when its thread is idle. A cancelled request therefore waits until the current decode step, or the
current prefill batch, is done. A thread that waits for a constraint stops at once.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from localinfer.server.http.api_errors import APIError

if TYPE_CHECKING:
    from localinfer.model import Model

STOPPABLE_STAGES = ("prefill", "constraint", "prompt", "frames", "video")
MIN_WAKE_INTERVAL = 1 / 60  # seconds between two deliveries: the refresh interval of a screen

T = TypeVar("T")

_thread_local = threading.local()  # `.slot` is the slot that owns the thread


class SlotStopped(BaseException):
    """Raised in a slot's thread to abort a request. A BaseException, so that no `except Exception` catches it."""


def stop_if_cancelled(stage: str, done: int, total: int) -> None:
    """Raise SlotStopped if the slot was stopped, between two prefill batches or two frames of a video, and while it
    waits for a child process. Pass the progress of prefill on to the slot.

    A `Progress` callback for a model.
    """
    slot: Slot | None = getattr(_thread_local, "slot", None)
    if slot and stage in STOPPABLE_STAGES:
        if slot.is_stopped:
            raise SlotStopped
        if slot.on_prefill and stage == "prefill":
            slot.on_prefill(done, total)


def stop_prompt_if_cancelled() -> None:
    """Raise SlotStopped if the slot was stopped while a child process tokenizes its prompt."""
    stop_if_cancelled("prompt", 0, 0)


class Slot:
    """A worker thread that runs one request at a time."""

    def __init__(self, number: int, bridge: "EventLoopBridge") -> None:
        self.number = number
        self._bridge = bridge
        self.is_busy = False
        self.model: Model | None = None  # the model that the slot currently uses
        self.divergence: Mapping[str, Any] | None = None  # of its latest prompt, see `prompt_history`
        self.model_name = ""  # its name
        self.on_prefill: Callable[[int, int], None] | None = None  # called with evaluated tokens and all of them
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, f"slot-{number}", initializer=self._init_thread)

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Stop the running `iterate` after the current item. Items that are already computed are still delivered."""
        self._stop.set()

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the slot's thread and return its result.

        If the caller is cancelled, the slot is stopped, and this method waits until `work` ends. Raises SlotStopped if
        `work` noticed that the slot was stopped.
        """
        self._stop.clear()
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([done])
            done.exception()  # mark the exception as retrieved
            raise

    async def iterate(
        self, items: Iterator[T], prefill_items: Callable[[int, int], Iterable[T]] | None = None
    ) -> AsyncGenerator[T, None]:
        """Iterate over `items` in the slot's thread and yield each item in the event loop.

        `prefill_items` is called while a prompt is evaluated, with the number of evaluated tokens and of all of them;
        it returns further items. Raises what the iterator raises. Call it after `call`, which clears the stop flag.
        """
        loop = self._bridge.loop = asyncio.get_running_loop()
        queue = ItemQueue[T | _End]()

        put = partial(self._bridge.put, queue.put)

        def on_prefill(done: int, total: int) -> None:
            for item in prefill_items(done, total) if prefill_items else ():
                put(item)
            self._bridge.wake(now=True)

        def produce() -> None:
            self.on_prefill = on_prefill if prefill_items else None
            try:
                for item in items:
                    put(item)
                    if self.is_stopped:
                        break
            except SlotStopped:
                pass
            finally:
                self.on_prefill = None
                put(END)
                self._bridge.wake(now=True)

        done = loop.run_in_executor(self._thread, produce)
        try:
            while not isinstance(item := await queue.get(), _End):
                yield item
            await done
        finally:
            self.stop()
            await asyncio.wait([done])

    def close(self) -> None:
        self.stop()
        self._thread.shutdown()

    def _init_thread(self) -> None:
        _thread_local.slot = self


class EventLoopBridge:
    """Passes items from the slots' threads to the event loop in batches.

    Waking the event loop for every item would take the GIL from the thread that is about to start the next decode step.
    The scheduler therefore wakes the loop while that step is computed, once for the items of all slots. Items that
    arrive within MIN_WAKE_INTERVAL of a delivery are delivered together, because the write to the socket has the
    highest cost per token.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pending: deque[tuple[Callable[[Any], None], object]] = deque()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False  # a delivery is scheduled or the timer is running

    def put(self, callback: Callable[[Any], None], item: object) -> None:
        """Queue an item; the event loop calls `callback(item)` at the next delivery. Thread-safe."""
        self.pending.append((callback, item))

    def wake(self, *, now: bool = False) -> None:
        """Schedule a delivery if items are pending. `now` skips the minimum interval. Thread-safe."""
        if self.pending and self.loop and (now or not self._is_scheduled):
            self._is_scheduled = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        if self._wake_timer is None:
            self._wake_timer = asyncio.get_running_loop().call_later(MIN_WAKE_INTERVAL, self._on_wake_timer)
        while self.pending:
            callback, item = self.pending.popleft()
            callback(item)

    def _on_wake_timer(self) -> None:
        self._wake_timer, self._is_scheduled = None, False
        if self.pending:  # must follow the clearing of `_is_scheduled`, else an item could be missed
            self._is_scheduled = True
            self._deliver()


class ItemQueue(Generic[T]):
    """A queue with one consumer, for use in the event loop's thread only. It is faster than asyncio.Queue."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._loop = asyncio.get_running_loop()
        self._arrival = self._loop.create_future()

    def put(self, item: T) -> None:
        self._items.append(item)
        if not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> T:
        """Return the next item; wait for it if there is none yet."""
        while not self._items:
            if self._arrival.done():
                self._arrival = self._loop.create_future()
            await self._arrival
        return self._items.popleft()


class _End:
    """The type of the end marker."""


END = _End()


class SlotPool:
    """A fixed number of slots and a bounded queue. Requests beyond the queue's limit are rejected with status 503."""

    def __init__(self, count: int, max_waiting: int) -> None:
        self.bridge = EventLoopBridge()
        self.all = [Slot(number, self.bridge) for number in range(count)]
        self.n_waiting = 0
        self._max_waiting = max_waiting
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def acquire(self, timeout: float, preferred: int = -1) -> AsyncIterator[Slot]:
        """Wait for a free slot, in order of arrival: the one with the number `preferred` if it is free.

        Raises APIError (503) if the queue is full or no slot becomes free within `timeout` seconds.
        """
        await self._wait(timeout)
        free = [each for each in self.all if not each.is_busy]
        slot = next((each for each in free if each.number == preferred), free[0])
        slot.is_busy = True
        try:
            yield slot
        finally:
            slot.is_busy = False
            self._free.release()

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free and no request waits, so that `acquire` returns at once."""
        return not self._free.locked() and not self.n_waiting

    async def _wait(self, timeout: float) -> None:
        if self._free.locked() and self.n_waiting >= self._max_waiting:
            raise APIError(503, f"the server is busy and its queue is full ({self.n_waiting} requests)", code="busy")
        self.n_waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            raise APIError(503, f"no slot became free within {timeout:.0f} s", code="busy") from None
        finally:
            self.n_waiting -= 1

    def close(self) -> None:
        for slot in self.all:
            slot.close()
