"""Places at a model, each with a thread that computes, and the line of those who wait for one.

    async with slots.one(patience=60) as slot:
        model = await slot.call(load)                     # in the slot's thread
        async with aclosing(slot.each(pieces)) as taken:  # drawn there, and taken here
            async for piece in taken: ...

A slot is free again when its thread is: who leaves early waits for the token, or the batch of a prompt, that is being
computed.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from localinfer.server.problems import Problem

if TYPE_CHECKING:
    from localinfer.model import Model

PAUSE = 1 / 60  # seconds; screens show no more pictures

T = TypeVar("T")

_here = threading.local()  # .slot, in its thread


class Left(BaseException):
    """Nobody waits any more for what is being computed. No Exception: it is not for anybody to handle."""


def leave_if_told(stage: str, _done: int, _total: int) -> None:
    """A model's Progress: between two batches of a prompt, raise Left when the slot is told to stop."""
    slot: Slot | None = getattr(_here, "slot", None)
    if slot and stage == "prefill" and slot.stopped:
        raise Left


class Slot:
    def __init__(self, number: int, outbox: "Outbox") -> None:
        self.number = number
        self._outbox = outbox
        self.busy = False
        self.model: Model | None = None  # that computes here now
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, f"slot-{number}", initializer=self._move_in)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """End what `each` is drawing; what has been drawn is still given out."""
        self._stop.set()

    async def call(self, work: Callable[[], T]) -> T:
        """What `work` returns. It is done to its end, also when who waits for it leaves."""
        self._stop.clear()
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            done.exception()  # nobody else asks for it
            raise

    async def each(self, items: Iterator[T]) -> AsyncGenerator[T, None]:
        """The items as soon as they are there; then raises what drawing them raised. Follows a `call`."""
        loop = self._outbox.loop = asyncio.get_running_loop()
        tray = Tray[T | _End]()

        def draw() -> None:
            put = partial(self._outbox.put, tray.put)
            try:
                for item in items:
                    put(item)
                    if self.stopped:
                        break
            except Left:
                pass
            finally:
                put(END)
                self._outbox.send(now=True)

        done = loop.run_in_executor(self._thread, draw)
        try:
            while not isinstance(item := await tray.take(), _End):
                yield item
            await done
        finally:
            self.stop()
            await asyncio.wait([done])

    def close(self) -> None:
        self.stop()
        self._thread.shutdown()

    def _move_in(self) -> None:
        _here.slot = self


class Outbox:
    """What the threads of slots have for the event loop, until it is time to wake it.

    Woken at each item, it would take the interpreter away from the thread that is about to have the next token
    computed. So it is woken when that is being computed, for what all slots have. What comes within PAUSE behind that
    goes out together, as a write to a socket takes longer than all else there is to do for a token.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.left: deque[tuple[Callable[[Any], None], object]] = deque()
        self._pause: asyncio.TimerHandle | None = None
        self._comes = False  # the loop looks for what is left soon enough

    def put(self, give: Callable[[Any], None], item: object) -> None:
        """Have the loop call `give` with an item when it is next woken."""
        self.left.append((give, item))

    def send(self, *, now: bool = False) -> None:
        """Wake the loop, if there is something for it; `now`, also when it was woken a moment ago."""
        if self.left and self.loop and (now or not self._comes):
            self._comes = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(PAUSE, self._end_of_pause)
        while self.left:
            give, item = self.left.popleft()
            give(item)

    def _end_of_pause(self) -> None:
        self._pause, self._comes = None, False
        if self.left:  # looked at after that, or a thread might count on what does not come
            self._comes = True
            self._deliver()


class Tray(Generic[T]):
    """Items for one taker in the event loop's own thread. asyncio's Queue, for many, takes longer for each."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._loop = asyncio.get_running_loop()
        self._arrival = self._loop.create_future()

    def put(self, item: T) -> None:
        self._items.append(item)
        if not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self) -> T:
        """The next item, once it is there."""
        while not self._items:
            if self._arrival.done():
                self._arrival = self._loop.create_future()
            await self._arrival
        return self._items.popleft()


class _End:
    """Stands behind the last item."""


END = _End()


class Slots:
    """So many at work, and so many in line; further ones are sent away with status 503."""

    def __init__(self, count: int, queue: int) -> None:
        self.outbox = Outbox()
        self.all = [Slot(number, self.outbox) for number in range(count)]
        self.waiting = 0
        self._queue = queue
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def one(self, patience: float) -> AsyncIterator[Slot]:
        """The next slot that is free, for who came first. A Problem after so many seconds, or when the line is full."""
        await self._wait(patience)
        slot = next(each for each in self.all if not each.busy)
        slot.busy = True
        try:
            yield slot
        finally:
            slot.busy = False
            self._free.release()

    @property
    def has_spare(self) -> bool:
        """Whether one is free that nobody waits for; `one` gives it at once."""
        return not self._free.locked() and not self.waiting

    async def _wait(self, patience: float) -> None:
        if self._free.locked() and self.waiting >= self._queue:
            raise Problem(503, f"the server is busy, and {self.waiting} requests are waiting already", code="busy")
        self.waiting += 1
        try:
            async with asyncio.timeout(patience):
                await self._free.acquire()
        except TimeoutError:
            raise Problem(503, f"the server was busy for {patience:.0f} s", code="busy") from None
        finally:
            self.waiting -= 1

    def close(self) -> None:
        for slot in self.all:
            slot.close()
