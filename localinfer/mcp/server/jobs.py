"""Work of a model in a thread, for the event loop of the MCP server: one job at a time, which can be cancelled."""

import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.to_thread

T = TypeVar("T")
Report = Callable[[float, float | None, str], Coroutine[Any, Any, None]]  # progress, total if known, message


class JobCancelled(BaseException):
    """Raised in the thread of a job to end it. A BaseException, so that no `except Exception` catches it."""


class Job:
    """What the thread of a job uses: `check` ends it if it was cancelled, `report` tells its progress to the client."""

    REPORT_SECONDS = 0.25  # between two reports

    def __init__(self, report: Report) -> None:
        self._report = report
        self._cancelled = threading.Event()
        self._last = -self.REPORT_SECONDS
        self._done = -1.0

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise JobCancelled

    def report(self, done: float, total: float | None, message: str) -> None:
        """Report progress, not too often. Clients expect that it only increases."""
        self.check()
        now = anyio.from_thread.run_sync(anyio.current_time)
        if now - self._last >= self.REPORT_SECONDS and done > self._done:
            self._last, self._done = now, done
            with suppress(Exception):  # the client may be gone; then the job is cancelled
                anyio.from_thread.run(self._report, done, total, message)


class JobQueue:
    """Runs jobs one after another, because a model has one run at a time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def run(self, work: Callable[[Job], T], report: Report) -> T:
        """Run `work` in a thread and return its result. Cancelling it ends the job before the next one begins."""
        job = Job(report)
        failures: list[Exception] = []

        def in_thread() -> T | None:
            try:
                return work(job)
            except JobCancelled:
                return None
            except Exception as error:  # raised below: a task group would wrap it
                failures.append(error)
                return None

        async with self._lock, anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_with, job)
            with anyio.CancelScope(shield=True):  # the thread ends soon after the job was cancelled
                result = await anyio.to_thread.run_sync(in_thread)
            tasks.cancel_scope.cancel()
        for failure in failures:
            raise failure
        return cast("T", result)  # a cancelled job does not get here


async def cancel_with(job: Job) -> None:
    """Cancel the job as soon as this task is cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        job.cancel()
