"""Records the points of a graph at which hooks read and change activations.

Only points that are asked for are recorded, and only for them operations are divided that are fused otherwise. The run
of the graph is cut at a point: hooks see the activations after the stage that computes them. As they may change them,
converted representations are computed again after the cut.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.points import POINTS, READ_ONLY, kind


@dataclass(frozen=True, eq=False)
class Point:
    """A point of a graph: activations of `heads` heads of `size` values per row, in memory padded to `dim` values.

    They are in place from op number `op` on, unless that is within a stage.
    """

    name: str
    op: int
    region: Region
    rows: Rows
    heads: int
    size: int
    dim: int
    dtype: type[np.float32] | type[np.int32] = np.float32

    @property
    def n(self) -> int:
        """The number of values of a row."""
        return self.heads * self.size

    @property
    def is_writable(self) -> bool:
        """Whether hooks may change the activations."""
        return kind(self.name) not in READ_ONLY

    def read(self, rows: slice) -> NDArray[np.float32] | NDArray[np.int32]:
        """Return a copy of some rows, (rows, n)."""
        heads = self._heads()[rows, :, : self.size]
        return heads.reshape(len(heads), self.n).copy()

    def write(self, rows: slice, values: NDArray[np.float32]) -> None:
        """Replace some rows."""
        self._heads()[rows, :, : self.size] = values.reshape(len(values), self.heads, self.size)

    def _heads(self) -> NDArray[np.float32]:
        """Return the memory, (rows, heads, dim)."""
        return self.region.view(self.dtype)[: self.rows.capacity * self.heads * self.dim].reshape(
            -1, self.heads, self.dim
        )


class PointRecorder:
    """Records the points of a graph that are `asked` for; None asks for all."""

    def __init__(self, graph: ComputeGraph, asked: Collection[str] | None = ()) -> None:
        self._graph, self._asked = graph, asked
        self.points: dict[str, Point] = {}  # by name, in the order of the graph

    def asks_for(self, name: str) -> bool:
        """Return whether a point is to be recorded."""
        return kind(name) in POINTS if self._asked is None else name in self._asked

    def add(self, name: str, x: Buffer, *, heads: int = 1, size: int = 0) -> None:
        """Record that the next op may read the activations of a point, if it is asked for.

        The heads of x have `size` values, followed by padding; 0: x has no padding.
        """
        if self.asks_for(name):
            x.quantized.is_written = x.bf16.is_written = False
            dim = x.n // heads
            self._add(Point(name, len(self._graph.ops), x.floats, x.rows, heads, size or dim, dim))

    def add_region(self, name: str, region: Region, n: int, dtype: type[np.float32] | type[np.int32]) -> None:
        """Record a point whose activations, n numbers for each token, are not in a buffer."""
        if self.asks_for(name):
            self._add(Point(name, len(self._graph.ops), region, self._graph.tokens, 1, n, n, dtype))

    def _add(self, point: Point) -> None:
        assert point.name not in self.points, point.name
        self.points[point.name] = point

    def cuts(self) -> dict[int, list[Point]]:
        """Return the points by the op before which the run is cut, in ascending order: the first one of a stage."""
        ops, cuts = self._graph.ops, dict[int, list[Point]]()
        for point in self.points.values():
            cut = next(number for number in range(point.op, len(ops) + 1) if ops[number - 1].barrier)
            cuts.setdefault(cut, []).append(point)
        return dict(sorted(cuts.items()))
