"""The thread that runs the scheduler's batches."""

import atexit
import threading
from collections.abc import Callable

from localinfer.errors import LocalInferError, NotEnoughMemoryError

IDLE_SECONDS = 1.0  # the thread ends after this long without requests


class SchedulerThread:
    """A thread that runs batches as long as there are requests.

    `condition` is notified of new requests. Under its lock, `has_requests` returns whether there are requests, and
    `is_blocked` whether another thread evaluates at the moment. `run_batch` is called without the lock.
    """

    def __init__(
        self,
        condition: threading.Condition,
        has_requests: Callable[[], bool],
        is_blocked: Callable[[], bool],
        run_batch: Callable[[], None],
    ) -> None:
        self._condition, self._has_requests, self._is_blocked = condition, has_requests, is_blocked
        self._run_batch = run_batch
        self._thread: threading.Thread | None = None  # while it lives
        self.is_shut_down = False  # the process is about to exit
        self._is_closed = False  # the model is closed

    def start(self) -> None:
        """Start the thread if it has ended. The caller holds the lock of the condition.

        Python stops daemon threads in the midst of a batch when the process exits, and a thread that waits for that
        batch would wait forever. `shutdown` ends it before.
        """
        if self._thread is not None:
            return
        if self.is_shut_down:
            raise LocalInferError("the process is about to exit: no more tokens can be evaluated")
        thread = threading.Thread(target=self._run, daemon=True, name="localinfer-scheduler")
        try:
            thread.start()
        except RuntimeError as error:  # no memory for a stack, or too many threads
            raise NotEnoughMemoryError(f"scheduler thread: {error}") from None
        atexit.register(self.shutdown)
        self._thread = thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs. In a forked process it does not."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this thread."""
        return threading.current_thread() is self._thread

    def shutdown(self) -> None:
        """End the thread after its current batch, before the process exits."""
        if (thread := self._thread) is not None and thread.is_alive():
            with self._condition:
                self.is_shut_down = True
                self._condition.notify_all()
            thread.join()

    def close(self) -> None:
        """End the thread if it is idle, else when there are no requests: it keeps the model's memory alive."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
            thread = None if self._has_requests() else self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        """Run batches until there have been no requests for a while."""
        while True:
            with self._condition:
                self._condition.wait_for(self._may_continue, IDLE_SECONDS)
                if self.is_shut_down or not self._has_requests():
                    self._thread = None
                    atexit.unregister(self.shutdown)
                    return
            self._run_batch()

    def _may_continue(self) -> bool:
        """Return whether the thread can run a batch or end."""
        if self._has_requests():
            return self.is_shut_down or not self._is_blocked()
        return self.is_shut_down or self._is_closed
