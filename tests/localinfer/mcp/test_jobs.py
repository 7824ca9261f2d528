"""Jobs of the MCP server's models: one at a time, and cancelled when the client cancels the call."""

import time

import anyio
import pytest

from localinfer.mcp.server import jobs
from localinfer.mcp.server.jobs import Job, JobQueue

pytest.importorskip("mcp")


async def no_report(done: float, total: float | None, message: str) -> None:
    pass


def test_a_cancelled_job_ends_before_the_next_one_begins() -> None:
    events: list[str] = []

    def endless(job: Job) -> None:
        events.append("begins")
        try:
            while True:
                job.check()
                time.sleep(0.01)
        finally:
            time.sleep(0.2)
            events.append("ends")

    async def run() -> None:
        queue = JobQueue()
        with anyio.move_on_after(0.3):
            await queue.run(endless, no_report)
        events.append(await queue.run(lambda job: "next", no_report))

    anyio.run(run)
    assert events == ["begins", "ends", "next"]


def test_errors_and_results_of_jobs() -> None:
    async def run() -> None:
        queue = JobQueue()
        with pytest.raises(ZeroDivisionError):
            await queue.run(lambda job: 1 // 0, no_report)
        assert await queue.run(lambda job: 5, no_report) == 5

    anyio.run(run)


def test_reports_only_increase_and_are_not_too_frequent() -> None:
    reports: list[float] = []

    async def note(done: float, total: float | None, message: str) -> None:
        reports.append(done)
        if done == 2:
            raise BrokenPipeError

    def work(job: Job) -> None:
        for done in (0, 1, 1, 0.5, 2, 3):
            job.report(done, None, "")
            time.sleep(2 * jobs.REPORT_SECONDS)
        for done in range(4, 2000):
            job.report(done, None, "")

    anyio.run(JobQueue().run, work, note)
    assert reports[:4] == [0, 1, 2, 3]
    assert len(reports) < 10
