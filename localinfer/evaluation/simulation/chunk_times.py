"""The time of each chunk of a graph for any number of threads, measured by one thread that runs all of them.

The graph is divided for `threads` threads, of which only the first one starts. The executor lets it steal the chunks of
all others, so a machine with few cores can measure what many threads would run. Such a run always has the same order:
the chunks of thread 0, then those of thread 1, and so on.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.evaluation.profile import Progress, split
from localinfer.evaluation.simulation.simulated_executor import OpChunks
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.graph.ops.cost import Cost
from localinfer.runtime.engine import Engine
from localinfer.runtime.timestamps import Clock, TimestampBuffer

RUNS = 3  # after one to warm up; the median of each chunk counts


class BatchChunks(NamedTuple):
    """The chunks of all ops that evaluate `tokens` tokens, and the seconds before and after them. `repeat` is the
    number of such batches."""

    tokens: int
    ops: Sequence[OpChunks]
    outside: float
    repeat: int = 1


class Recording(NamedTuple):
    """A run of one thread: the op and the ticks of each chunk in order, the chunks per thread of each op, and the
    seconds of the whole evaluation."""

    ops: NDArray[np.int64]
    ticks: NDArray[np.int64]
    span: int  # ticks from the first chunk to the last
    per_thread: Sequence[int]
    seconds: float


def measure_chunks(
    engine: Engine, prompt: Sequence[int], decoded: Sequence[int], progress: Progress
) -> dict[str, list[BatchChunks]]:
    """Evaluate a prompt and an answer. Return the chunks of the batches of both phases, "prefill" and "decode".

    The steps of decode are the same batch, repeated: each of its chunks has the median time of all steps.
    """
    clock, batches = Clock(), {"prefill": list(split(prompt, engine.graph.batch)), "decode": list(split(decoded, 1))}
    recordings: dict[tuple[str, int], list[Recording]] = defaultdict(list)
    with engine.compiled_graph.recorded_timestamps(alone=True) as buffer:
        for run in range(RUNS + 1):
            engine.reset()
            for phase, number, tokens in ((name, *each) for name in batches for each in enumerate(batches[name])):
                progress(f"{phase} as one of {engine.graph.n_threads} threads, run {run} of {RUNS}")
                recording = record(engine, tokens, buffer)
                if run:
                    recordings[phase, number if phase == "prefill" else 0].append(recording)
    tick, n_prompt = clock.seconds_per_tick(), len(prompt)
    found: dict[str, list[BatchChunks]] = {}
    for (phase, number), each in recordings.items():
        count, n_past = len(batches[phase][number]), n_prompt if phase == "decode" else number * engine.graph.batch
        repeat = len(decoded) if phase == "decode" else 1
        chunks = merge(each, tick, engine.graph.op_costs(count, n_past, 1))
        found.setdefault(phase, []).append(BatchChunks(count, chunks, outside(each, tick), repeat))
    return found


def record(engine: Engine, tokens: Sequence[int], buffer: TimestampBuffer) -> Recording:
    """Evaluate a batch."""
    begin = time.perf_counter()
    engine.evaluate(tokens)
    seconds, taken = time.perf_counter() - begin, buffer.take()
    counts = [int(op.rows.tokens.view(np.int64)[0]) for op in engine.graph.ops]
    per_thread = [op.chunks[count > MAX_SMALL_BATCH] for op, count in zip(engine.graph.ops, counts, strict=True)]
    return Recording(taken.op, taken.end - taken.begin, int(taken.end[-1] - taken.begin[0]), per_thread, seconds)


def outside(recordings: Sequence[Recording], tick: float) -> float:
    """Return the median of the seconds of an evaluation without ops: Python, and the start of the thread."""
    return max(0.0, float(np.median([each.seconds - each.span * tick for each in recordings])))


def merge(recordings: Sequence[Recording], tick: float, costs: Sequence[Cost]) -> list[OpChunks]:
    """Return the chunks of each op, with the median time of all recordings, which ran the same chunks."""
    first = recordings[0]
    assert all(np.array_equal(first.ops, each.ops) for each in recordings)
    seconds = np.median([each.ticks for each in recordings], axis=0) * tick
    chunks = []
    for op, (per_thread, cost) in enumerate(zip(first.per_thread, costs, strict=True)):
        times = seconds[first.ops == op]
        rate = cost.nbytes / times.sum() if times.sum() else 0.0
        chunks.append(OpChunks(times.tolist(), per_thread, float(rate)))
    return chunks
