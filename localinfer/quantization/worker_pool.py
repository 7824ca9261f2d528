"""A thread pool with a bounded queue: tasks start in order and finish in any order.

Tasks are Python functions that spend their time in compiled code. The calling thread only waits, so that it can receive
signals. If it or a task raises an exception, no further task starts.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

QUEUED_PER_THREAD = 16  # per thread, so that no thread waits for the caller to submit the next task

Task = Callable[[], None]


class WorkerPool:
    """A pool of worker threads, used as a context manager. When the context ends, no task is running any more."""

    def __init__(self, threads: int) -> None:
        self._limit = QUEUED_PER_THREAD * threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="localinfer-quantize")
        self._pending: deque[tuple[Future[None], Task | None]] = deque()

    def submit(self, task: Task, then: Task | None = None) -> None:
        """Queue a task. Raises the exceptions of earlier tasks.

        `then` runs in the calling thread during a later call, after this and all earlier tasks have finished.
        """
        while len(self._pending) >= self._limit:
            self._wait_for_first()
        self._pending.append((self._pool.submit(task), then))

    def _wait_for_first(self) -> None:
        future, then = self._pending.popleft()
        future.result()
        if then:
            then()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self._pending:
                self._wait_for_first()
        finally:
            self._pool.shutdown(cancel_futures=True)
