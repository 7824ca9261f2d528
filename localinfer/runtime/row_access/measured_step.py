"""A forward pass of a loaded model that is repeated with different choices of its kernels, and the time of its ops.

The times of ops come from timestamps: an op takes as long as all of its chunks together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.compute_graph import product_ops
from localinfer.graph.ops.product_choices import ProductShape
from localinfer.runtime.batch import Segment
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.timestamps import TimestampBuffer

Ticks = NDArray[np.float64]  # (choices, ops): the clock ticks of all threads together, infinite if not measured
Steps = list[Ticks]
Run = Callable[[], NDArray[np.float64]]
OpRange = tuple[int, int]  # first op, and one past the last


class MeasuredStep:
    """A forward pass that can be repeated: `tokens` tokens at the beginning of a sequence of its own, which is never
    committed.

    Of a large model, it has as many layers as have `max_bytes` of weights. With one token it has the output layer, too.
    """

    def __init__(self, runner: ModelRunner, *, max_bytes: int, tokens: int = 1) -> None:
        self.runner, self.graph, self.tokens, self._max_bytes = runner, runner.graph, tokens, max_bytes
        self._ranges = self._op_ranges()
        self._shapes = {
            number: shape
            for number, shape in product_ops(self.graph).items()
            if any(first <= number < end for first, end in self._ranges)
        }

    def _op_ranges(self) -> list[OpRange]:
        """Return the ranges of ops of the step. With several tokens, the range of a draft head is not measured."""
        first, end = self.runner.compiled_graph.op_ranges(logits=self.tokens == 1)[0]
        output_layer, nbytes = self.runner.compiled_graph.model_graph.output_ops[0], 0
        for number, cost in enumerate(self.graph.op_costs(tokens=1, n_past=0, outputs=1)[:output_layer]):
            nbytes += cost.nbytes
            if nbytes > self._max_bytes and self.graph.ops[number].barrier:
                return [(first, number + 1), *([(output_layer, end)] if self.tokens == 1 else [])]
        return [(first, end)]

    @property
    def nbytes(self) -> Mapping[ProductShape, int]:
        """The bytes of weights of the step, by shape."""
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
    def prepared(self, buffer: TimestampBuffer) -> Iterator[Run]:
        """Yield a function that runs the step with the choices of the graph, and returns the ticks of its ops."""
        sequence = self.runner.new_sequence()
        try:
            self.runner.prepare([Segment(sequence, np.zeros(self.tokens, np.int32))])
            self.runner.compiled_graph.select_output_rows(np.zeros(1, np.int32))
            yield partial(self._run, buffer)
        finally:
            with self.runner.page_table_lock:
                sequence.reset()

    def _run(self, buffer: TimestampBuffer) -> NDArray[np.float64]:
        buffer.take()
        for first, end in self._ranges:
            self.runner.run(first, end, tokens=self.tokens)
        return total_ticks(buffer, len(self.graph.ops))


def total_ticks(buffer: TimestampBuffer, n_ops: int) -> NDArray[np.float64]:
    """Return the ticks that all threads together spent in each op, float64 (n_ops,); infinite if it did not run."""
    stamps = buffer.take()
    ticks = np.bincount(stamps.op, weights=stamps.end - stamps.begin, minlength=n_ops)
    return np.where(np.bincount(stamps.op, minlength=n_ops) > 0, ticks, np.inf)


def typical_ticks(steps: Steps) -> Ticks:
    """Return the lower quartile of the ticks of each op, over all steps."""
    quartiles: Ticks = np.quantile(steps, 0.25, axis=0, method="lower")
    return quartiles
