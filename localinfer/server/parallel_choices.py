"""Several choices for one request, generated in parallel while there are free slots that no other request waits for.

The scheduler evaluates the common prefix of their prompts once; the sequences share its KV pages.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.lease import Lease

T = TypeVar("T")
ChoiceGenerator = Callable[[Lease], AsyncGenerator[T, None]]  # generates one choice with a lease and yields events


def run_choices(choices: Sequence[ChoiceGenerator[T]], lease: Lease, dispatcher: Dispatcher) -> AsyncGenerator[T, None]:
    """Yield the events of all choices as soon as they arrive; the events of each choice stay in order.

    If one choice fails, all are cancelled and the error is raised.
    """
    return choices[0](lease) if len(choices) == 1 else ParallelChoices(choices, lease, dispatcher).run()


class ParallelChoices(Generic[T]):
    """Choices that are not started yet, and the tasks that generate them.

    One task uses the request's own slot. Further tasks lease additional slots while there are free ones.
    """

    def __init__(self, choices: Sequence[ChoiceGenerator[T]], lease: Lease, dispatcher: Dispatcher) -> None:
        self._pending = deque(choices)
        self._first_lease, self._dispatcher = lease, dispatcher
        self._tasks: list[asyncio.Task[None]] = []
        self._result_queue: asyncio.Queue[T | None] = asyncio.Queue()  # None: a task has finished

    async def run(self) -> AsyncGenerator[T, None]:
        self._start_task(self._run_in_request_slot())
        n_finished = 0
        try:
            while n_finished < len(self._tasks):
                if (result := await self._result_queue.get()) is not None:
                    yield result
                    continue
                n_finished += 1
                for task in self._tasks:
                    if task.done():
                        task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))
        self._tasks[-1].add_done_callback(lambda _: self._result_queue.put_nowait(None))

    async def _run_in_request_slot(self) -> None:
        while self._pending:
            await self._run_next(self._first_lease)

    async def _run_in_extra_slots(self) -> None:
        while self._pending and self._dispatcher.can_lease_another(self._first_lease):  # waiting requests go first
            async with self._dispatcher.lease_another(self._first_lease) as extra_lease:
                await self._run_next(extra_lease)

    async def _run_next(self, lease: Lease) -> None:
        """Start a task for further choices if another slot is free; then generate the next one with `lease`."""
        generate_choice = self._pending.popleft()
        if self._pending and self._dispatcher.can_lease_another(self._first_lease):
            self._start_task(self._run_in_extra_slots())
        async with aclosing(generate_choice(lease)) as results:
            async for result in results:
                self._result_queue.put_nowait(result)
