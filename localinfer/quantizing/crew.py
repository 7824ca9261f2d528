"""Threads for pieces of work that are done in any order, handed out in order, a bounded number at a time.

The pieces are Python functions that spend their time in compiled code. The caller's thread only waits, so that a
signal reaches it; when anything is raised there, or by a piece, no further piece begins.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

AHEAD = 16  # pieces for each thread that may wait, so that it never waits for the one that hands them out

Task = Callable[[], None]


class Crew:
    """Use as a context: at its end all pieces are done, or none is running any more."""

    def __init__(self, threads: int) -> None:
        self._limit = AHEAD * threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="localinfer-crew")
        self._begun: deque[tuple[Future[None], Task | None]] = deque()

    def give(self, task: Task, then: Task | None = None) -> None:
        """Have a piece done; when it and all before it are, `then` runs in the caller's thread, at the next occasion.

        Raises what a piece raised.
        """
        while len(self._begun) >= self._limit:
            self._wait_for_first()
        self._begun.append((self._pool.submit(task), then))

    def _wait_for_first(self) -> None:
        future, then = self._begun.popleft()
        future.result()
        if then:
            then()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self._begun:
                self._wait_for_first()
        finally:
            self._pool.shutdown(cancel_futures=True)
