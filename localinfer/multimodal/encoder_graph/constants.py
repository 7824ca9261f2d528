"""Constants of an encoder's graph: contents of memory that are written once, before the graph runs."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph

Floats = NDArray[np.float32]


class Constants:
    """The constants of a graph. They are recorded first, because the graph has no memory while it is built: `recorded`
    has the memory, the offset in bytes and the contents of each."""

    def __init__(self, graph: ComputeGraph) -> None:
        self._graph = graph
        self.recorded: list[tuple[Region, int, NDArray[np.generic]]] = []

    def region(self, values: NDArray[np.generic]) -> Region:
        """Return memory with these contents."""
        region = self._graph.region(values.nbytes)
        self.recorded.append((region, 0, values))
        return region

    def rows(self, values: Floats, rows: Rows | None = None) -> Buffer:
        """Return rows with these contents: one for each row of the graph, or `rows`. Call it outside of layers."""
        y = self._graph.buffer(values.shape[1], rows)
        self.set_rows(y, 0, values)
        return y

    def set_rows(self, y: Buffer, first: int, values: Floats) -> None:
        """Let rows of y from `first` on, which no op writes, have these contents. The buffer must belong to no layer.
        """
        self.recorded.append((y.floats, 4 * y.n * first, values))

    def write(self) -> None:
        """Write all contents into the memory of the graph."""
        for region, at, values in self.recorded:
            region.view(np.uint8)[at : at + values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
