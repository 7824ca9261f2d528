"""Timing of the ways in which a model's decode kernels can read rows.

Decode steps run with each candidate in turns, on the model's own weights and with the threads that it will use, so the
caches hold what they hold in real use. The times of ops come from timestamps: an op takes as long as all of its chunks
together. Another process that takes a core for a moment must not change the result: of the steps, the one at the lower
quartile counts. The fastest chunks or steps would mislead: with many streams, a few of them happen to find their rows
in the cache.

Rounds of steps are repeated until two in a row agree. Then a single thread runs a few steps alone: how much all threads
read together depends on who else uses the memory at the time, so of the ways that are about equally fast together, the
one that is fastest alone is chosen. It leaves the most room for more bandwidth, and takes the least time of the cores.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.product_choices import ProductChoices, ProductShape
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.row_access.measured_step import MeasuredStep, Run, Steps, typical_ticks
from localinfer.runtime.timestamps import Clock
from quant.jit.loader import Progress
from quant.matmul.row_access import CANDIDATES, RowAccess

RunWith = Callable[[RowAccess], NDArray[np.float64]]  # runs a step, and returns the ticks of its ops

MAX_STEP_BYTES = 768 << 20  # of weights that a measured step reads: more than caches hold
MIN_ROUND_STEPS, MIN_ROUND_SECONDS = 4, 0.2
MAX_SECONDS = 4.0
MIN_ALONE_STEPS, MIN_ALONE_SECONDS = 2, 0.1  # with one thread
SIMILAR = 0.03  # a difference between ways of reading that matters less than how fast a thread is alone
TOLERANCE = 0.03  # rounds agree if each finds the other's choice at most this much slower than its own


@dataclass(frozen=True, slots=True)
class ShapeTiming:
    """The bytes that a decode step reads of a shape, and the seconds that it takes with each candidate: with all
    threads, and with one thread alone if the model has several.
    """

    nbytes: int
    seconds: Mapping[RowAccess, float]
    seconds_alone: Mapping[RowAccess, float]

    @property
    def best(self) -> RowAccess:
        """Of the candidates that are about as fast as the fastest, the one that is fastest with one thread alone.

        For a model with one thread, it is the first: those with more streams follow, whose times depend more on what
        the caches happen to hold.
        """
        limit = (1 + SIMILAR) * min(self.seconds.values())
        similar = [access for access, seconds in self.seconds.items() if seconds <= limit]
        return min(similar, key=lambda access: self.seconds_alone.get(access, 0.0))

    def bytes_per_second(self, access: RowAccess) -> float:
        """Return the read bandwidth with a candidate."""
        return self.nbytes / self.seconds[access]

    def bytes_per_second_alone(self, access: RowAccess) -> float | None:
        """Return the read bandwidth of one thread alone with a candidate, if it was measured."""
        return self.nbytes / self.seconds_alone[access] if self.seconds_alone else None


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
    graph, step = runner.graph, MeasuredStep(runner, max_bytes=MAX_STEP_BYTES)
    before, clock = graph.product_choices.accesses, Clock()
    alone: Steps = []
    try:
        with runner.lock:
            with runner.compiled_graph.recorded_timestamps() as buffer, step.prepared(buffer) as run:
                rounds, agree = run_rounds(step, choosing(graph.product_choices, run), large, progress)
            if graph.threads > 1:
                with runner.compiled_graph.recorded_timestamps(alone=True) as buffer, step.prepared(buffer) as run:
                    alone = run_round(choosing(graph.product_choices, run), MIN_ALONE_STEPS, MIN_ALONE_SECONDS)
    finally:
        graph.product_choices.set_accesses(before)
        if progress:
            progress("tune", 1, 1)
    seconds_per_tick, nbytes = clock.seconds_per_tick(), step.nbytes

    def seconds_of(shape: ProductShape, steps: Steps, threads: int) -> dict[RowAccess, float]:
        """Return the seconds of a shape's products with each candidate, if steps have run."""
        if not steps:
            return {}
        seconds = step.total(typical_ticks(steps), shape) * (seconds_per_tick / threads)
        return dict(zip(CANDIDATES, seconds.tolist(), strict=True))

    together = [each for steps in rounds for each in steps]
    return Timings(
        {
            shape: ShapeTiming(nbytes[shape], seconds_of(shape, together, graph.threads), seconds_of(shape, alone, 1))
            for shape in nbytes
        },
        agree,
    )


def choosing(choices: ProductChoices, run: Run) -> RunWith:
    """Return a function that runs a step in which all products read rows in one way."""

    def run_with(access: RowAccess) -> NDArray[np.float64]:
        choices.set_accesses(dict.fromkeys(choices.regions, access))
        return run()

    return run_with


def run_rounds(
    step: MeasuredStep, run: RunWith, large: Sequence[ProductShape], progress: Progress | None
) -> tuple[list[Steps], bool]:
    """Run rounds until two in a row agree, or until MAX_SECONDS have passed. Return their steps, and whether two
    agreed."""
    rounds: list[Steps] = []
    begin = time.perf_counter()
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
        rounds.append(run_round(run, MIN_ROUND_STEPS, MIN_ROUND_SECONDS))


def run_round(run: RunWith, min_steps: int, min_seconds: float) -> Steps:
    """Run at least `min_steps` steps with each candidate in turns, for at least `min_seconds`."""
    steps: Steps = []
    begin = time.perf_counter()
    while len(steps) < min_steps or time.perf_counter() - begin < min_seconds:
        steps.append(np.array([run(access) for access in CANDIDATES]))
    return steps


def choose_alike(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Return whether two rounds have the same fastest candidate, or candidates of nearly the same speed."""
    return bool(
        one[other.argmin()] <= (1 + TOLERANCE) * one.min() and other[one.argmin()] <= (1 + TOLERANCE) * other.min()
    )
