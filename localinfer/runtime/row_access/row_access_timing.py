"""Timing of the ways in which a model's decode kernels can read rows.

Decode steps run with each candidate in turns, on the model's own weights and with the threads that it will use, so the
caches hold what they hold in real use. The times of ops come from timestamps: an op takes as long as all of its chunks
together. Another process that takes a core for a moment must not change the result: of the steps, the one at the lower
quartile counts. The fastest chunks or steps would mislead: with many streams, a few of them happen to find their rows
in the cache.

Rounds of steps are repeated until two in a row agree.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.compute_graph import ProductShape, product_ops
from localinfer.runtime.batch import Segment
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.timestamps import Clock, TimestampBuffer
from quant.jit.loader import Progress
from quant.matmul.row_access import CANDIDATES, RowAccess

MAX_STEP_BYTES = 768 << 20  # of weights that a measured step reads: more than caches hold
MIN_ROUND_STEPS, MIN_ROUND_SECONDS = 4, 0.2
MAX_SECONDS = 4.0
NEGLIGIBLE = 0.025  # a difference that is not worth a way of reading that depends more on the caches
TOLERANCE = 0.03  # rounds agree if each finds the other's choice at most this much slower than its own

Ticks = NDArray[np.float64]  # (candidates, ops): the clock ticks of all threads together, infinite if not measured
Steps = list[Ticks]
OpRange = tuple[int, int]  # first op, and one past the last


@dataclass(frozen=True, slots=True)
class ShapeTiming:
    """The bytes that a decode step reads of a shape, and the seconds that it takes with each candidate."""

    nbytes: int
    seconds: Mapping[RowAccess, float]

    @property
    def best(self) -> RowAccess:
        """The first candidate that is about as fast as the fastest. Those with more streams follow, whose times depend
        more on what the caches happen to hold.
        """
        shortest = min(self.seconds.values())
        return next(access for access, seconds in self.seconds.items() if seconds <= (1 + NEGLIGIBLE) * shortest)

    def bytes_per_second(self, access: RowAccess) -> float:
        """Return the read bandwidth with a candidate."""
        return self.nbytes / self.seconds[access]


@dataclass(frozen=True, slots=True)
class Timings:
    """The timings of a model's shapes, and whether two rounds agreed on the fastest candidates."""

    shapes: Mapping[ProductShape, ShapeTiming]
    rounds_agree: bool


def measure(runner: ModelRunner, large: Sequence[ProductShape], progress: Progress | None = None) -> Timings:
    """Measure the candidates for all shapes, until rounds agree on those that are `large`. The choices of the model do
    not change.

    `progress` is called with the stage "tune", milliseconds and total milliseconds. Raises LocalInferError if the CPU
    has no clock that compiled code can read.
    """
    graph = runner.graph
    before = {shape: graph.row_access_of(shape) for shape in graph.row_accesses}
    try:
        with runner.lock, runner.compiled_graph.recorded_timestamps() as buffer:
            clock = Clock()
            step = MeasuredStep(runner, buffer)
            rounds, agree = run_rounds(step, large, progress)
            seconds_per_thread = clock.seconds_per_tick() / graph.threads
    finally:
        for shape, access in before.items():
            graph.set_row_access(shape, access)
        if progress:
            progress("tune", 1, 1)
    ticks, nbytes = typical_ticks([each for steps in rounds for each in steps]), step.nbytes
    return Timings(
        {
            shape: ShapeTiming(
                nbytes[shape],
                dict(zip(CANDIDATES, (seconds_per_thread * step.total(ticks, shape)).tolist(), strict=True)),
            )
            for shape in nbytes
        },
        agree,
    )


class MeasuredStep:
    """A decode step that can be repeated: one token at position 0 of a sequence of its own, which is never committed.

    Of a large model, it has as many layers as MAX_STEP_BYTES allows, and the output layer.
    """

    def __init__(self, runner: ModelRunner, buffer: TimestampBuffer) -> None:
        self.runner, self.graph, self._buffer = runner, runner.graph, buffer
        self._ranges = self._op_ranges()
        self._shapes = {
            number: shape
            for number, shape in product_ops(self.graph).items()
            if any(first <= number < end for first, end in self._ranges)
        }

    def _op_ranges(self) -> list[OpRange]:
        """Return the ranges of ops of the step."""
        [(first, end)] = self.runner.compiled_graph.op_ranges(logits=True)
        output_layer, nbytes = self.runner.compiled_graph.output_layer_ops[0], 0
        for number, cost in enumerate(self.graph.op_costs(tokens=1, n_past=0, outputs=1)[:output_layer]):
            nbytes += cost.nbytes
            if nbytes > MAX_STEP_BYTES and self.graph.ops[number].barrier:
                return [(first, number + 1), (output_layer, end)]
        return [(first, end)]

    @property
    def nbytes(self) -> Mapping[ProductShape, int]:
        """The bytes of weights that the step reads, by shape."""
        costs, nbytes = self.graph.op_costs(tokens=1, n_past=0, outputs=1), defaultdict[ProductShape, int](int)
        for number, shape in self._shapes.items():
            nbytes[shape] += costs[number].nbytes
        return nbytes

    def total(self, ticks: Ticks, shape: ProductShape) -> NDArray[np.float64]:
        """Return the ticks of all products of a shape, by candidate."""
        ops = [number for number, other in self._shapes.items() if other == shape]
        totals: NDArray[np.float64] = ticks[:, ops].sum(axis=1)
        return totals

    @contextmanager
    def prepared(self) -> Iterator[Callable[[RowAccess], NDArray[np.float64]]]:
        """Yield a function that runs the step with a candidate for all shapes, and returns the ticks of its ops."""
        sequence = self.runner.new_sequence()
        try:
            self.runner.prepare([Segment(sequence, np.zeros(1, np.int32))])
            self.runner.compiled_graph.select_output_rows(np.zeros(1, np.int32))
            yield self._run
        finally:
            with self.runner.page_table_lock:
                sequence.reset()

    def _run(self, access: RowAccess) -> NDArray[np.float64]:
        for shape in self.graph.row_accesses:
            self.graph.set_row_access(shape, access)
        self._buffer.take()
        for first, end in self._ranges:
            self.runner.run(first, end, tokens=1)
        return total_ticks(self._buffer, len(self.graph.ops))


def total_ticks(buffer: TimestampBuffer, n_ops: int) -> NDArray[np.float64]:
    """Return the ticks that all threads together spent in each op, float64 (n_ops,); infinite if it did not run."""
    stamps = buffer.take()
    ticks = np.bincount(stamps.op, weights=stamps.end - stamps.begin, minlength=n_ops)
    return np.where(np.bincount(stamps.op, minlength=n_ops) > 0, ticks, np.inf)


def typical_ticks(steps: Steps) -> Ticks:
    """Return the lower quartile of the ticks of each op, over all steps."""
    quartiles: Ticks = np.quantile(steps, 0.25, axis=0, method="lower")
    return quartiles


def run_rounds(
    step: MeasuredStep, large: Sequence[ProductShape], progress: Progress | None
) -> tuple[list[Steps], bool]:
    """Run rounds until two in a row agree, or until MAX_SECONDS have passed. Return their steps, and whether two
    agreed."""
    rounds: list[Steps] = []
    begin = time.perf_counter()
    with step.prepared() as run:
        run(CANDIDATES[0])  # maps the pages of the weights
        while True:
            seconds = time.perf_counter() - begin
            last = [typical_ticks(steps) for steps in rounds[-2:]]
            if len(last) > 1 and all(choose_alike(*(step.total(each, shape) for each in last)) for shape in large):
                return rounds, True
            if len(rounds) > 1 and seconds > MAX_SECONDS:
                return rounds, False
            if progress:
                progress("tune", int(1000 * min(seconds, 0.999 * MAX_SECONDS)), int(1000 * MAX_SECONDS))
            rounds.append(run_round(run))


def run_round(run: Callable[[RowAccess], NDArray[np.float64]]) -> Steps:
    """Run steps with each candidate in turns."""
    steps: Steps = []
    begin = time.perf_counter()
    while len(steps) < MIN_ROUND_STEPS or time.perf_counter() - begin < MIN_ROUND_SECONDS:
        steps.append(np.array([run(access) for access in CANDIDATES]))
    return steps


def choose_alike(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Return whether two rounds have the same fastest candidate, or candidates of nearly the same speed."""
    return bool(
        one[other.argmin()] <= (1 + TOLERANCE) * one.min() and other[one.argmin()] <= (1 + TOLERANCE) * other.min()
    )
