"""Timing of the two ways in which register tiles of prefill make floats of integer sums
(`quant.matmul.layout.has_two_conversions`), in the first layers of a model, with the threads that it will use.

Steps alternate between the two ways. Of the steps of each way, the one at the lower quartile counts; rounds of steps
are repeated until two in a row choose alike.
"""

import numpy as np

from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH, ProductShape
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.row_access.measured_step import MeasuredStep, Run, Steps, typical_ticks
from quant import FORMATS
from quant.matmul.layout import has_two_conversions

TOKENS = 48
MAX_STEP_BYTES = 64 << 20  # of weights: a step takes some 20 ms
ROUND_STEPS, MAX_ROUNDS = 4, 5
NEGLIGIBLE = 0.01  # a difference that is not worth another way than the default


def tile_step(runner: ModelRunner) -> MeasuredStep | None:
    """Return the step to measure, or None if the kernels of this machine have one way, or batches are small."""
    tokens = min(TOKENS, runner.graph.batch, runner.compiled_graph.n_ctx)
    if tokens <= MAX_SMALL_BATCH or not has_two_conversions(runner.graph.passes):
        return None
    return MeasuredStep(runner, max_bytes=MAX_STEP_BYTES, tokens=tokens)


def quantized_shapes(step: MeasuredStep) -> list[ProductShape]:
    """Return the shapes in a step whose tiles have two ways."""
    return [shape for shape in step.nbytes if FORMATS[shape.type].activation_type(shape.passes) == "quantized"]


def measure_tiles(step: MeasuredStep) -> dict[ProductShape, bool]:
    """Return, for each shape in the step, whether subtracting is faster. The choices of the model do not change."""
    runner, graph, shapes = step.runner, step.graph, quantized_shapes(step)
    before = {shape: graph.subtracts(shape) for shape in graph.row_accesses}
    found, chosen = Steps(), list[bool]()
    try:
        with runner.lock, runner.compiled_graph.recorded_timestamps() as buffer, step.prepared(buffer) as run:
            run_round(step, run)  # maps the pages of the weights
            for _ in range(MAX_ROUNDS):
                steps = run_round(step, run)
                found += steps
                last, chosen = chosen, choose(step, steps, shapes)
                if chosen == last:
                    break
    finally:
        for shape, subtract in before.items():
            graph.set_subtraction(shape, subtract=subtract)
    return dict(zip(shapes, choose(step, found, shapes), strict=True))


def run_round(step: MeasuredStep, run: Run) -> Steps:
    """Run steps with each way in turns: the stored shift, and the subtraction."""

    def ticks(subtract: bool) -> object:
        return run(lambda shape: step.graph.set_subtraction(shape, subtract=subtract))

    return [np.array([ticks(False), ticks(True)]) for _ in range(ROUND_STEPS)]


def choose(step: MeasuredStep, steps: Steps, shapes: list[ProductShape]) -> list[bool]:
    """Return, for each shape, whether subtracting is faster by more than what is negligible."""
    totals = [step.total(typical_ticks(steps), shape) for shape in shapes]
    return [bool(subtracting < (1 - NEGLIGIBLE) * adding) for adding, subtracting in totals]
