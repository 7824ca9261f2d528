"""The order in which the scheduler wakes the threads whose requests are finished."""

import contextlib
from collections import deque

from localinfer.runtime.compiled_graph import CompiledGraph
from localinfer.runtime.scheduling.request import RequestOwner

MIN_WOKEN = 4  # threads to wake in each batch; a quarter of them if there are more than 16


class WakeQueue:
    """Engines whose threads are to be woken. Threads are woken while a batch runs, by the thread that waits for it.

    A thread with a submitted next step need not be woken at once: only a few of these are woken in each batch, in
    turns, since each of them takes CPU time from the thread pool.

    The caller holds the scheduler's lock, but not for `wake_scheduled`.
    """

    def __init__(self, compiled_graph: CompiledGraph) -> None:
        self._deferred: deque[RequestOwner] = deque()  # engines with a submitted next step, longest waiting first
        self._scheduled: deque[RequestOwner] = deque()  # to be woken once the next batch runs
        self._woken: set[RequestOwner] = set()  # woken, without a new request yet
        self._compiled_graph = compiled_graph
        compiled_graph.idle_work.add(self._scheduled, self.wake_scheduled)

    def add(self, engine: RequestOwner, *, has_next_step: bool) -> None:
        """Add an engine whose request is finished. `has_next_step` is whether its next step is known."""
        (self._deferred if has_next_step else self._scheduled).append(engine)

    def schedule(self, *, at_once: bool) -> None:
        """Schedule some of the deferred engines for the next batch, or wake all engines `at_once`."""
        count = len(self._deferred) if at_once else max(MIN_WOKEN, -(-len(self._deferred) // MIN_WOKEN))
        self._scheduled += [self._deferred.popleft() for _ in range(min(count, len(self._deferred)))]
        if at_once:
            self.wake_scheduled()

    def wake_scheduled(self) -> None:
        """Wake the threads of the scheduled engines."""
        engines = list[RequestOwner]()
        with contextlib.suppress(IndexError):  # empty: two threads may do this at once
            while True:
                engines.append(self._scheduled.popleft())
        self._woken.update(engines)
        for engine in engines:
            engine.wake()

    def mark_returned(self, engine: RequestOwner) -> bool:
        """Record that the thread of an engine has a new request, or will have none soon. Return whether this holds for
        all woken threads."""
        self._woken.discard(engine)
        return not self._woken
