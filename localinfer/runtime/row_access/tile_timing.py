"""Timing of the two ways in which register tiles of prefill make floats of integer sums
(`quant.matmul.layout.has_two_conversions`), in the first layers of a model, with the threads that it will use.

Steps alternate between the two ways. Of the steps of each way, the one at the lower quartile counts; rounds of steps
are repeated until two in a row choose alike.
"""

from collections.abc import Sequence

import numpy as np

from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.graph.ops.product_choices import ProductChoices
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


def quantized_types(step: MeasuredStep) -> list[int]:
    """Return the tensor types in a step whose tiles have two ways."""
    types = {shape.type: FORMATS[shape.type].activation_type(shape.passes) for shape in step.nbytes}
    return [number for number, activations in types.items() if activations == "quantized"]


def measure_tiles(step: MeasuredStep) -> dict[int, bool]:
    """Return, for each tensor type in the step, whether subtracting is faster. The choices of the model do not
    change."""
    runner, choices, types = step.runner, step.graph.product_choices, quantized_types(step)
    before, found, chosen = choices.subtractions, Steps(), list[bool]()
    try:
        with runner.lock, runner.compiled_graph.recorded_timestamps() as buffer, step.prepared(buffer) as run:
            run_round(run, choices, types)  # maps the pages of the weights
            for _ in range(MAX_ROUNDS):
                steps = run_round(run, choices, types)
                found += steps
                last, chosen = chosen, choose(step, steps, types)
                if chosen == last:
                    break
    finally:
        choices.set_subtractions(before)
    return dict(zip(types, choose(step, found, types), strict=True))


def run_round(run: Run, choices: ProductChoices, types: Sequence[int]) -> Steps:
    """Run steps with each way in turns: the stored shift, and the subtraction."""

    def ticks(subtract: bool) -> object:
        choices.set_subtractions(dict.fromkeys(types, subtract))
        return run()

    return [np.array([ticks(False), ticks(True)]) for _ in range(ROUND_STEPS)]


def choose(step: MeasuredStep, steps: Steps, types: Sequence[int]) -> list[bool]:
    """Return, for each tensor type, whether subtracting is faster by more than what is negligible."""
    ticks = typical_ticks(steps)
    totals = [
        np.sum([step.total(ticks, shape) for shape in step.nbytes if shape.type == number], axis=0) for number in types
    ]
    return [bool(subtracting < (1 - NEGLIGIBLE) * adding) for adding, subtracting in totals]
