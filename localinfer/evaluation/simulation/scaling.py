"""The speed of a model with any number of threads, simulated from the measured time of each chunk, and its limits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from localinfer.evaluation.profile import op_kind
from localinfer.evaluation.simulation.chunk_times import BatchChunks
from localinfer.evaluation.simulation.simulated_executor import CoreTime, Machine, SimulatedExecutor
from localinfer.graph.ops.op import Op

THREAD_INTERVAL = 8e-8  # seconds between two workers that start, or end: each writes a cache line that another reads


class Scaling(NamedTuple):
    """A phase on a simulated machine, compared with one thread on a core of speed 1.

    The core times of ops are for the whole phase; `outside` is the core time before and after the ops of each batch.
    """

    phase: str
    tokens: int
    machine: Machine
    seconds: float
    one_thread_seconds: float
    ops: Mapping[int, CoreTime]
    outside: float

    @property
    def speedup(self) -> float:
        """The speed compared with one thread on a core of speed 1."""
        return self.one_thread_seconds / self.seconds

    @property
    def efficiency(self) -> float:
        """The speedup as a fraction of the sum of the speeds of the cores."""
        return self.speedup / self.machine.total_speed

    @property
    def core_seconds(self) -> float:
        """The time of all cores."""
        return self.seconds * self.machine.total_speed


def simulate(
    phase: str, machine: Machine, graph: Sequence[Op], alone: Sequence[BatchChunks], divided: Sequence[BatchChunks]
) -> Scaling:
    """Simulate the batches of a phase with the ops of `graph`. `alone` are their chunks in a graph for one thread,
    `divided` those in one for the threads of the machine."""
    one_thread, barriers = machine._replace(speeds=[1.0]), [op.barrier for op in graph]
    last_threads = (len(machine.speeds) - 1) * machine.thread_interval  # end after the first one
    before = seconds = outside = 0.0
    ops: dict[int, CoreTime] = {}
    for whole, batch in zip(alone, divided, strict=True):
        before += batch.repeat * (SimulatedExecutor(one_thread, whole.ops, barriers).run().seconds + whole.outside)
        run = SimulatedExecutor(machine, batch.ops, barriers).run()
        around = whole.outside + last_threads
        seconds += batch.repeat * (run.seconds + around)
        outside += batch.repeat * (run.outside + around * machine.total_speed)
        for op, spent in run.ops.items():
            work = sum(whole.ops[op].seconds)
            divided_work = replace(spent, work=work, smaller_chunks=spent.work - work)
            ops[op] = ops.get(op, CoreTime()) + divided_work * batch.repeat
    return Scaling(phase, sum(each.tokens * each.repeat for each in divided), machine, seconds, before, ops, outside)


def group_times(scaling: Scaling, ops: Sequence[Op]) -> dict[str, CoreTime]:
    """Return the core times of all ops of a kind, those that cost the most first."""
    sums: dict[str, CoreTime] = {}
    for op, spent in scaling.ops.items():
        sums[op_kind(ops[op])] = sums.get(op_kind(ops[op]), CoreTime()) + spent
    return dict(sorted(sums.items(), key=lambda item: -item[1].total))
