"""A profile as Chrome's trace format: to look at in chrome://tracing or ui.perfetto.dev.

Source: "Trace Event Format", Google, 2016. One row a thread, one event a part of an op; above them the batches.
"""

import json
from collections.abc import Iterator
from typing import Any

from localinfer.judging.profile import Batch, Profile, kind

MICROSECONDS = 1e6
PROCESS = 1


def chrome_trace(profile: Profile) -> bytes:
    """The JSON text."""
    start = min(int(batch.stamps.begin.min()) for phase in profile.phases for batch in phase.batches)
    events = list(rows(max(phase.threads for phase in profile.phases)))
    for phase in profile.phases:
        for batch in phase.batches:
            events.append(batch_event(profile, phase.name, batch, start))
            events.extend(part_events(profile, batch, start))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")).encode()


def rows(threads: int) -> Iterator[dict[str, Any]]:
    """What the rows are called."""
    for row, name in enumerate(["batches", *(f"thread {number}" for number in range(threads))]):
        yield {"name": "thread_name", "ph": "M", "pid": PROCESS, "tid": row, "args": {"name": name}}


def batch_event(profile: Profile, name: str, batch: Batch, start: int) -> dict[str, Any]:
    span = int(batch.stamps.begin.min()), int(batch.stamps.end.max())
    arguments = {"tokens": batch.tokens, "past": batch.past}
    return {"name": name, "cat": "batch", **placed(profile, *span, start, row=0), "args": arguments}


def part_events(profile: Profile, batch: Batch, start: int) -> Iterator[dict[str, Any]]:
    s = batch.stamps
    for op, thread, begin, end in zip(*(each.tolist() for each in (s.op, s.thread, s.begin, s.end)), strict=True):
        recorded = profile.ops[op]
        yield {"name": recorded.name, "cat": kind(recorded), **placed(profile, begin, end, start, row=thread + 1)}


def placed(profile: Profile, begin: int, end: int, start: int, row: int) -> dict[str, Any]:
    """A complete event's place in time, in microseconds since `start`."""
    scale = profile.seconds_per_tick * MICROSECONDS
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": row,
        "ts": round((begin - start) * scale, 3),
        "dur": round((end - begin) * scale, 3),
    }
