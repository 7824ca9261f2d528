"""Timing of the ways in which a model's decode kernels can read rows.

Decode steps run with each candidate in turns, on the model's own weights and with the threads that it will use, so the
caches hold what they hold in real use. The times of ops come from timestamps: an op takes as long as all of its chunks
together. Another process that takes a core for a moment must not change the result: of the steps, the one at the lower
quartile counts. The fastest chunks or steps would mislead: with many streams, a few of them happen to find their rows
in the cache.

Rounds of steps are repeated until two in a row agree.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.compute_graph import ProductShape
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.row_access.measured_step import MeasuredStep, Steps, typical_ticks
from localinfer.runtime.timestamps import Clock, TimestampBuffer
from quant.jit.loader import Progress
from quant.matmul.row_access import CANDIDATES, RowAccess

MAX_STEP_BYTES = 768 << 20  # of weights that a measured step reads: more than caches hold
MIN_ROUND_STEPS, MIN_ROUND_SECONDS = 4, 0.2
MAX_SECONDS = 4.0
NEGLIGIBLE = 0.025  # a difference that is not worth a way of reading that depends more on the caches
TOLERANCE = 0.03  # rounds agree if each finds the other's choice at most this much slower than its own


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
            step = MeasuredStep(runner, max_bytes=MAX_STEP_BYTES)
            rounds, agree = run_rounds(step, buffer, large, progress)
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


def run_rounds(
    step: MeasuredStep, buffer: TimestampBuffer, large: Sequence[ProductShape], progress: Progress | None
) -> tuple[list[Steps], bool]:
    """Run rounds until two in a row agree, or until MAX_SECONDS have passed. Return their steps, and whether two
    agreed."""
    rounds: list[Steps] = []
    begin = time.perf_counter()
    with step.prepared(buffer) as run_step:

        def run(access: RowAccess) -> NDArray[np.float64]:
            return run_step(lambda graph: graph.set_row_accesses(access))

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
