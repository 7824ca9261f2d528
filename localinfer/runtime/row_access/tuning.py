"""Tuning: a loaded model's kernels read rows in the way that was measured to be the fastest on this machine.

The first model with a block format, a row length, a precision and a number of threads is measured
(`row_access_timing`), which takes a second or two. The result is stored beside the kernel cache (`tuning_table`). If
other programs disturbed the measurement, or if decode is much slower afterwards than the measurement promises, the next
start measures again.
"""

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.graph.ops.compute_graph import product_ops
from localinfer.graph.ops.product_choices import ProductShape
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.row_access.tuning_table import TunedAccess, TuningTable
from quant.jit.loader import Progress

if TYPE_CHECKING:
    from localinfer.runtime.row_access.row_access_timing import Timings

MIN_SHAPE_BYTES = 8 << 20  # of weights; reading less takes no time that matters
MIN_DECODE_STEPS = 32
MIN_STEP_BYTES = 256 << 20  # of weights; in smaller models, other ops take a large part of a decode step
SLOW_DECODE = 2.0  # times the time that reading the weights takes at the measured bandwidth


def tune(runner: ModelRunner, progress: Progress | None = None, *, may_measure: bool = True) -> None:
    """Choose how the kernels of a loaded model read rows: from the tuning table, or by measuring if that is allowed.

    `progress` is called with the stage "tune", milliseconds and total milliseconds.
    """
    graph, table = runner.graph, TuningTable(paths.jit_dir())
    known = table.read(graph.threads)
    graph.product_choices.set_accesses({shape: tuned.access for shape, tuned in known.items()})
    missing = [shape for shape in graph.product_choices.regions if shape not in known or not known[shape].is_final]
    with contextlib.suppress(LocalInferError):  # without a clock, the defaults remain
        if may_measure and missing and not set(missing).isdisjoint(tunable_shapes(runner)):
            measure_and_store(runner, table, progress)
        tune_tiles(runner, table, may_measure=may_measure)


def tune_tiles(runner: ModelRunner, table: TuningTable, *, may_measure: bool, again: bool = False) -> None:
    """Choose how register tiles make floats of integer sums: from the tuning table, or by measuring if that is allowed
    and something is missing or to be measured `again`.

    Raises LocalInferError if the CPU has no clock that compiled code can read.
    """
    from localinfer.runtime.row_access.tile_timing import measure_tiles, quantized_types, tile_step

    step = tile_step(runner)
    if step is None:
        return
    types, found = quantized_types(step), {} if again else table.read_subtractions()
    if may_measure and not set(types) <= found.keys() and tunable_shapes(runner):
        found |= measure_tiles(step)
        table.update_subtractions({number: found[number] for number in types})
    runner.graph.product_choices.set_subtractions(found)


def measure_and_store(runner: ModelRunner, table: TuningTable, progress: Progress | None = None) -> "Timings":
    """Measure the candidates for all shapes, use the fastest, and store them in the table. Return the timings.

    Raises LocalInferError if the CPU has no clock that compiled code can read.
    """
    from localinfer.runtime.row_access.row_access_timing import measure

    graph, timings = runner.graph, measure(runner, tunable_shapes(runner), progress)
    known, found = table.read(graph.threads), {}
    for shape, timing in timings.shapes.items():
        disturbed = 0 if timings.rounds_agree else known[shape].disturbed + 1 if shape in known else 1
        found[shape] = TunedAccess(timing.best, timing.bytes_per_second(timing.best), disturbed)
    graph.product_choices.set_accesses({shape: tuned.access for shape, tuned in found.items()})
    table.update(graph.threads, found)
    return timings


def recheck(runner: ModelRunner) -> None:
    """Have the next start measure again if the decode steps of this process were much slower than they should be. The
    time of steps that wait for the storage does not count."""
    if runner.compiled_graph.expert_cache is not None:
        return
    steps, nbytes = sorted(runner.decode_seconds), decode_bytes(runner) if runner.decode_seconds else {}
    if len(steps) < MIN_DECODE_STEPS or sum(nbytes.values()) < MIN_STEP_BYTES:
        return
    graph, table = runner.graph, TuningTable(paths.jit_dir())
    known = {shape: tuned for shape, tuned in table.read(graph.threads).items() if shape in nbytes}
    seconds = sum(nbytes[shape] / tuned.bytes_per_second for shape, tuned in known.items())
    if known and steps[len(steps) // 4] > SLOW_DECODE * seconds:
        table.update(graph.threads, {shape: tuned._replace(disturbed=1) for shape, tuned in known.items()})


def decode_bytes(runner: ModelRunner) -> dict[ProductShape, int]:
    """Return the bytes of weights that a decode step reads, by shape."""
    graph, nbytes = runner.graph, defaultdict[ProductShape, int](int)
    costs = graph.op_costs(tokens=1, n_past=0, outputs=1)
    for number, shape in product_ops(graph).items():
        nbytes[shape] += costs[number].nbytes
    return nbytes


def tunable_shapes(runner: ModelRunner) -> list[ProductShape]:
    """Return the shapes whose weights are large enough to matter. Encoders and diffusion language models have none,
    because they never decode."""
    if not runner.compiled_graph.model_graph.context.causal:
        return []
    return [shape for shape, total in decode_bytes(runner).items() if total >= MIN_SHAPE_BYTES]
