"""The progress of loading a model, and how another thread cancels it.

    attempt = LoadAttempt(on_progress)
    with attempt.watched():           # in the thread that loads
        localinfer.load(name, progress=report_load_progress)
    attempt.cancel()                  # from any thread: the load ends with LoadCancelled at its next report
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

REPORT_SECONDS = 0.1  # between two reports

_thread_local = threading.local()  # `.attempt` is the attempt that the thread makes


class LoadCancelled(BaseException):
    """Raised in the thread that loads a model. A BaseException, so that nothing retries."""


class LoadAttempt:
    """One attempt to load a model. `on_progress` is called with the fraction of a stage that is done."""

    def __init__(self, on_progress: Callable[[float], None] = lambda _: None) -> None:
        self._on_progress, self._is_cancelled, self._next_report = on_progress, threading.Event(), 0.0

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        """End the load at its next report of progress."""
        self._is_cancelled.set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Make this the attempt that the calling thread reports to."""
        _thread_local.attempt = self
        try:
            self.report(0, 1)
            yield
        finally:
            _thread_local.attempt = None

    def report(self, done: int, total: int) -> None:
        """Report progress. Raises LoadCancelled."""
        if self.is_cancelled:
            raise LoadCancelled
        if monotonic() >= self._next_report:
            self._next_report = monotonic() + REPORT_SECONDS
            self._on_progress(done / total if total else 0.0)


def report_load_progress(_stage: str, done: int, total: int) -> None:
    """Report progress to the attempt of the calling thread, if it makes one. A `Progress` callback for a model."""
    attempt: LoadAttempt | None = getattr(_thread_local, "attempt", None)
    if attempt:
        attempt.report(done, total)
