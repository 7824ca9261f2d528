"""The input of media rows: they replace rows of the token embedding, and further values are added to the residual
stream after the first layers (DeepStack; Meng et al., 2024)."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.kernels.signatures import ADD_ROWS, REPLACE_ROWS, KernelSignature


class MediaRows(NamedTuple):
    """Media rows that follow each other in a batch: the token of the first one, their values, and whether the last one
    is the end of its image or sound."""

    first: int
    values: NDArray[np.float32]
    is_end: bool


class MediaInput:
    """The media rows of a batch: the input of the first layer, then what is added after each of the first `n_deepstack`
    layers."""

    def __init__(self, graph: ComputeGraph, n: int, n_deepstack: int) -> None:
        self._graph, self._n = graph, n
        self.row_size = n * (1 + n_deepstack)
        self._numbers = graph.region(4 * graph.batch)  # int32: the row of each token, or -1
        self._rows = graph.region(4 * graph.batch * self.row_size)  # float32

    def replace(self, x: Buffer) -> None:
        """Record the replacement of the token embedding."""
        self._record("media", REPLACE_ROWS, x, 0)

    def add(self, x: Buffer, layer: int) -> None:
        """Record the addition to the residual stream after a layer."""
        self._record(f"blk.{layer}.deepstack", ADD_ROWS, x, (1 + layer) * self._n)

    def _record(self, name: str, kernel: KernelSignature, x: Buffer, first: int) -> None:
        self._graph.op(
            name, kernel, x.rows, chunks=(0, 8), x=self._rows, x_n=self.row_size, x_first=first, numbers=self._numbers,
            n=x.n, y=x,
        )  # fmt: skip

    def fill(self, tokens: int, runs: Iterable[MediaRows]) -> None:
        """Set the media rows of a batch of `tokens` tokens."""
        numbers = self._numbers.view(np.int32)
        numbers[:tokens] = -1
        rows = self._rows.view(np.float32).reshape(-1, self.row_size)
        for first, values, _ in runs:
            rows[first : first + len(values)] = values
            numbers[first : first + len(values)] = np.arange(first, first + len(values))
