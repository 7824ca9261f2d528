"""Power failures during a batch job: what was synced stays, and the job resumes."""

import random
from itertools import count
from pathlib import Path

import pytest
from power_loss import Disk

from localinfer.batch import output_file
from localinfer.batch.input_file import parse_requests
from localinfer.batch.job import Job, Response
from localinfer.errors import UsageError

REQUESTS = parse_requests(b"".join(b'"prompt %d"\n' % number for number in range(6)), "in", "jsonl")


def finish(path: Path, *, sort: bool = True) -> None:
    """Run the job, or what remains of it."""
    work = Job(REQUESTS, "01234567")
    with output_file.open_output(path, restart=False) as out:
        work.resume(out)
        for request in sorted(work.pending(), key=lambda each: -each.number):
            work.add(Response(request, 200, {"answer": "x" * 30 * request.number}), out)
        if sort:
            work.sort_output(out)


def test_job_resumes_after_a_power_failure_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(output_file.time, "monotonic", lambda: next(ticks) * 0.4)
    (tmp_path / "run").mkdir()
    with Disk(tmp_path / "run") as disk:
        finish(tmp_path / "run" / "out")
    complete = (tmp_path / "run" / "out").read_bytes()
    lines = complete.splitlines(keepends=True)
    seen = set()
    for crash in disk.crashes(random.Random(0)):
        if (state := tuple(sorted(crash.files.items()))) in seen:
            continue
        seen.add(state)
        folder = tmp_path / f"crash{len(seen)}"
        folder.mkdir()
        crash.restore(folder)
        before = crash.files.get("out", b"")
        if before.startswith(b"\0") and not synced_lines(disk, crash.moment):  # as good as any other program's file
            with pytest.raises(UsageError, match=r"does not end with a batch response|not batch responses"):
                finish(folder / "out")
            assert (folder / "out").read_bytes() == before
            continue
        finish(folder / "out")
        assert (folder / "out").read_bytes() == complete
        synced = [line for line in synced_lines(disk, crash.moment) if line in lines]
        assert all(line in before for line in synced), "lines that were synced are not lost"
    assert len(seen) > 20


def synced_lines(disk: Disk, moment: int) -> list[bytes]:
    """Return the lines that were on disk at this moment."""
    first, _, states = disk.moments[moment]
    named = [file for path, file in disk.renames[:first] if path == "out" and file is not None]
    file = disk.files[named[-1]] if named else None
    return [write.data for write in file.writes[: states[named[-1]][0]] if write.data] if file else []
