"""Export of a profile in Chrome's trace format, for chrome://tracing or ui.perfetto.dev.

Source: "Trace Event Format", Google, 2016. The first row has an event per batch. Each further row is a thread, with an
event per task of an operation.
"""

import json
from collections.abc import Iterator
from typing import Any

from localinfer.evaluation.profile import Batch, Profile, op_kind

MICROSECONDS = 1e6
PROCESS = 1


def chrome_trace(profile: Profile) -> bytes:
    """Return the trace as JSON."""
    start = min(int(batch.timestamps.begin.min()) for phase in profile.phases for batch in phase.batches)
    events = list(thread_names(max(phase.threads for phase in profile.phases)))
    for phase in profile.phases:
        for batch in phase.batches:
            events.append(batch_event(profile, phase.name, batch, start))
            events.extend(task_events(profile, batch, start))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")).encode()


def thread_names(threads: int) -> Iterator[dict[str, Any]]:
    """Yield the metadata events that name the rows."""
    for row, name in enumerate(["batches", *(f"thread {number}" for number in range(threads))]):
        yield {"name": "thread_name", "ph": "M", "pid": PROCESS, "tid": row, "args": {"name": name}}


def batch_event(profile: Profile, name: str, batch: Batch, start: int) -> dict[str, Any]:
    span = int(batch.timestamps.begin.min()), int(batch.timestamps.end.max())
    arguments = {"tokens": batch.tokens, "n_past": batch.n_past}
    return {"name": name, "cat": "batch", **event_span(profile, *span, start, row=0), "args": arguments}


def task_events(profile: Profile, batch: Batch, start: int) -> Iterator[dict[str, Any]]:
    s = batch.timestamps
    for op, thread, begin, end in zip(*(each.tolist() for each in (s.op, s.thread, s.begin, s.end)), strict=True):
        recorded = profile.ops[op]
        yield {
            "name": recorded.name,
            "cat": op_kind(recorded),
            **event_span(profile, begin, end, start, row=thread + 1),
        }


def event_span(profile: Profile, begin: int, end: int, start: int, row: int) -> dict[str, Any]:
    """Return the timestamp fields of a complete event, in microseconds since `start`."""
    scale = profile.seconds_per_tick * MICROSECONDS
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": row,
        "ts": round((begin - start) * scale, 3),
        "dur": round((end - begin) * scale, 3),
    }
