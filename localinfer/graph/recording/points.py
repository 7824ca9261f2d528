"""Records the points of a graph at which hooks read and change activations.

Only the requested points are recorded. Operations that are usually fused are divided only where a requested point is
between them. The run of the graph is interrupted at a point: hooks get the activations after the stage that computes
them. As hooks may change them, converted representations are computed again after this cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.recurrent_state import StatePool
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.points import READ_ONLY, is_point, kind

Indices = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Point(ABC):
    """A point of a graph. Its activations are in place from op number `op` on, unless that is within a stage."""

    name: str
    op: int
    rows: Rows

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the values of a row."""

    @abstractmethod
    def read(self, rows: slice) -> NDArray[np.float32] | NDArray[np.int32]:
        """Return a copy of some rows, (rows, *shape)."""

    @abstractmethod
    def write(self, rows: slice, values: NDArray[np.float32]) -> None:
        """Replace some rows."""

    @property
    def is_state(self) -> bool:
        """Whether the point is a recurrent state: it has no row but for the last token of a sequence in a batch."""
        return False

    @property
    def is_writable(self) -> bool:
        """Whether hooks may change the activations."""
        return kind(self.name) not in READ_ONLY


@dataclass(frozen=True, eq=False)
class RowPoint(Point):
    """Activations of `heads` heads of `size` values per row, in memory padded to `dim` values."""

    region: Region
    heads: int
    size: int
    dim: int
    dtype: type[np.float32] | type[np.int32] = np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.heads * self.size,)

    def read(self, rows: slice) -> NDArray[np.float32] | NDArray[np.int32]:
        heads = self._heads()[rows, :, : self.size]
        return heads.reshape(len(heads), *self.shape).copy()

    def write(self, rows: slice, values: NDArray[np.float32]) -> None:
        self._heads()[rows, :, : self.size] = values.reshape(len(values), self.heads, self.size)

    def _heads(self) -> NDArray[np.float32]:
        """Return the memory, (rows, heads, dim)."""
        return self.region.view(self.dtype)[: self.rows.capacity * self.heads * self.dim].reshape(
            -1, self.heads, self.dim
        )


@dataclass(frozen=True, eq=False)
class ExpertPoint(Point):
    """Activations of the experts that each token uses, expert after expert. They are in rows that are sorted by expert,
    in one or two groups: see `localinfer.kernels.experts` for `pair_rows`."""

    groups: Sequence[Buffer]
    pair_rows: Region
    used: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.used * self.groups[0].n,)

    def read(self, rows: slice) -> NDArray[np.float32]:
        pairs = self._pairs(rows)
        values = np.empty((len(pairs), self.groups[0].n), np.float32)
        for group, numbers, chosen in self._parts(pairs):
            values[chosen] = group[numbers]
        return values.reshape(-1, *self.shape)

    def write(self, rows: slice, values: NDArray[np.float32]) -> None:
        of_pairs = values.reshape(-1, self.groups[0].n)
        for group, numbers, chosen in self._parts(self._pairs(rows)):
            group[numbers] = of_pairs[chosen]

    def _pairs(self, rows: slice) -> NDArray[np.int32]:
        """Return the entries of `pair_rows` for the experts of some tokens."""
        return self.pair_rows.view(np.int32)[self.used * rows.start : self.used * rows.stop]

    def _parts(self, pairs: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.float32], Indices, NDArray[np.bool_]]]:
        """Yield the memory of each group, the numbers of its rows, and the pairs that these belong to."""
        in_small = pairs >= 0
        for group, numbers, chosen in ((self.groups[0], pairs, in_small), (self.groups[-1], -1 - pairs, ~in_small)):
            yield group.floats.view(np.float32).reshape(-1, group.n), numbers[chosen], chosen


@dataclass(frozen=True, eq=False)
class StatePoint(Point):
    """The recurrent state of a layer, after the last token of a sequence in a batch. Later tokens begin with it.

    A slot has `memory_shape`; with its axes in the order `axes`, it has the values of `shape` in order.
    """

    states: StatePool
    region: Region
    state_shape: tuple[int, ...]
    memory_shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.state_shape

    @property
    def is_state(self) -> bool:
        return True

    def read(self, rows: slice) -> NDArray[np.float32]:
        return np.stack([self._state(row).reshape(self.shape) for row in range(rows.start, rows.stop)])

    def write(self, rows: slice, values: NDArray[np.float32]) -> None:
        for row, value in zip(range(rows.start, rows.stop), values, strict=True):
            state = self._state(row)
            state[:] = value.reshape(state.shape)

    def _state(self, row: int) -> NDArray[np.float32]:
        """Return the memory of the state after a row, which must be the last one of a segment."""
        slots = self.region.view(np.float32).reshape(-1, *self.memory_shape)
        state: NDArray[np.float32] = slots[self.states.slot_after(row)]
        return state.transpose(self.axes)


class PointRecorder:
    """Records the points of a graph that are `asked` for; None asks for all."""

    def __init__(self, graph: ComputeGraph, asked: Collection[str] | None = ()) -> None:
        self._graph, self._asked = graph, asked
        self.points: dict[str, Point] = {}  # by name, in the order of the graph

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Record no points in the with block."""
        asked, self._asked = self._asked, ()
        try:
            yield
        finally:
            self._asked = asked

    def asks_for(self, name: str) -> bool:
        """Return whether a point is to be recorded."""
        return is_point(name) if self._asked is None else name in self._asked

    def add(self, name: str, x: Buffer, *, heads: int = 1, size: int = 0, rows: Rows | None = None) -> None:
        """Record that the next op may read the activations of a point, if it is asked for.

        The heads of x have `size` values, followed by padding; 0: x has no padding. `rows` are the first rows of x, if
        not all are activations.
        """
        if self.asks_for(name):
            x.quantized.is_written = x.bf16.is_written = False
            dim = x.n // heads
            self._add(RowPoint(name, len(self._graph.ops), rows or x.rows, x.floats, heads, size or dim, dim))

    def add_region(self, name: str, region: Region, n: int, dtype: type[np.float32] | type[np.int32]) -> None:
        """Record a point whose activations, n numbers for each token, are not in a buffer."""
        if self.asks_for(name):
            self._add(RowPoint(name, len(self._graph.ops), self._graph.tokens, region, 1, n, n, dtype))

    def add_expert_rows(self, name: str, groups: Sequence[Buffer], pair_rows: Region, used: int) -> None:
        """Record a point of experts, `used` by each token, whose activations the next op may read. They must not be
        converted ones."""
        if self.asks_for(name):
            self._add(ExpertPoint(name, len(self._graph.ops), self._graph.tokens, groups, pair_rows, used))

    def add_state(
        self, name: str, states: StatePool, region: Region, shape: tuple[int, ...],
        memory_shape: tuple[int, ...] = (), axes: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Record the state that the last op has updated: see `StatePoint`. Without a `memory_shape`, its values are in
        order. A convolution over one token has no state."""
        if self.asks_for(name) and all(shape):
            memory_shape = memory_shape or shape
            axes = axes or tuple(range(len(shape)))
            tokens = self._graph.tokens
            self._add(StatePoint(name, len(self._graph.ops), tokens, states, region, shape, memory_shape, axes))

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
