"""Work of a model in a thread, for the event loop of the MCP server: one job at a time, which can be cancelled."""

import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

import anyio
import anyio.to_thread

REPORT_SECONDS = 0.1  # between two reports of progress

T = TypeVar("T")
Report = Callable[[float, float | None, str], Coroutine[Any, Any, None]]  # as the fields of Progress


class JobCancelled(BaseException):
    """Raised in the thread of a job to end it. A BaseException, so that no `except Exception` catches it."""


class Progress(NamedTuple):
    """How far a job is."""

    done: float
    total: float | None
    message: str


class Job:
    """What the thread of a job uses: `check` ends it if it was cancelled, `report` tells its progress.

    Neither waits for the event loop, which may have ended.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise JobCancelled

    def report(self, done: float, total: float | None, message: str) -> None:
        self.check()
        self.progress = Progress(done, total, message)


class JobQueue:
    """Runs jobs one after another, because a model has one run at a time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def run(self, work: Callable[[Job], T], report: Report) -> T:
        """Run `work` in a thread and return its result. Cancelling it ends the job before the next one begins."""
        job = Job()
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
            tasks.start_soon(follow, job, report)
            with anyio.CancelScope(shield=True):  # the thread ends soon after the job was cancelled
                result = await anyio.to_thread.run_sync(in_thread)
            tasks.cancel_scope.cancel()
        for failure in failures:
            raise failure
        return cast("T", result)  # a cancelled job does not get here


async def follow(job: Job, report: Report) -> None:
    """Report the progress of a job, which only increases for the client. When this is cancelled, so is the job."""
    last = -1.0
    try:
        while True:
            await anyio.sleep(REPORT_SECONDS)
            progress = job.progress
            if progress and progress.done > last:
                last = progress.done
                with suppress(Exception):  # the client may be gone; then the job is cancelled
                    await report(*progress)
    finally:
        job.cancel()
