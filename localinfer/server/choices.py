"""Several answers to one request: computed together, as far as there are slots that nobody else waits for.

What their prompts have in common is read once: lanes share it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from localinfer.server.desk import Desk, Seat

T = TypeVar("T")
Answer = Callable[[Seat], AsyncGenerator[T, None]]  # in a seat, what there is to tell of it


def together(answers: Sequence[Answer[T]], seat: Seat, desk: Desk) -> AsyncGenerator[T, None]:
    """What all of them tell, as soon as it is there: of each one in its order. One that fails ends all."""
    return answers[0](seat) if len(answers) == 1 else Choices(answers, seat, desk).told()


class Choices(Generic[T]):
    """Answers that are not given yet, and tasks that give one after the other: one in the request's own seat, further
    ones beside it while there is room."""

    def __init__(self, answers: Sequence[Answer[T]], seat: Seat, desk: Desk) -> None:
        self._left = deque(answers)
        self._seat, self._desk = seat, desk
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived: asyncio.Queue[T | None] = asyncio.Queue()  # None: a task has ended

    async def told(self) -> AsyncGenerator[T, None]:
        self._begin(self._here())
        ended = 0
        try:
            while ended < len(self._tasks):
                if (each := await self._arrived.get()) is not None:
                    yield each
                    continue
                ended += 1
                for task in self._tasks:
                    if task.done():
                        task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))
        self._tasks[-1].add_done_callback(lambda _: self._arrived.put_nowait(None))

    async def _here(self) -> None:
        while self._left:
            await self._give(self._seat)

    async def _beside(self) -> None:
        while self._left and self._desk.has_room_beside(self._seat):  # who came meanwhile goes first
            async with self._desk.beside(self._seat) as other:
                await self._give(other)

    async def _give(self, seat: Seat) -> None:
        """The next answer; while it is on its way, others may be, too."""
        answer = self._left.popleft()
        if self._left and self._desk.has_room_beside(self._seat):
            self._begin(self._beside())
        async with aclosing(answer(seat)) as told:
            async for each in told:
                self._arrived.put_nowait(each)
