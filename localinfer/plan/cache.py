"""The ring KV cache: which cell a position's key and value lie in, and what a position may see.

Layers that see the same stretch of the past share a ring. The ring of a sliding window holds it and one batch, so
that the tokens of a batch never overwrite what their first still looks at. With sinks, the first positions keep cells
of their own in front of the ring (Xiao et al., 2023). Knows positions and cells, no keys and no values.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.ops.layout import BLOCK, CELL_BYTES
from localinfer.plan.plan import Plan, Region

NEVER = np.iinfo(np.int32).max  # the position of a cell that holds nothing


def whole_blocks(cells: int) -> int:
    """Cells, rounded up to whole blocks."""
    return -(-cells // BLOCK) * BLOCK


@dataclass(eq=False)
class Ring:
    """`sinks` positions stay in the first `sink_cells` cells; the others go round in the rest of `capacity`."""

    window: int
    capacity: int
    sinks: int
    cells: Region  # int32 [batch]: the cell of each token of the batch
    positions: Region  # int32 [capacity]: what each cell holds
    blocks: Region  # int64: how many blocks are in use
    sink_blocks: Region  # int64

    @classmethod
    def reserve(cls, plan: Plan, *, window: int, span: int, sinks: int = 0) -> "Ring":
        """A ring that holds at least `span` positions beside the sinks."""
        capacity = whole_blocks(sinks) + whole_blocks(span)
        regions = plan.region(4 * plan.batch), plan.region(4 * capacity), plan.region(8), plan.region(8)
        return cls(window, capacity, sinks, *regions)

    @property
    def sink_cells(self) -> int:
        """The cells in front of the ring."""
        return whole_blocks(self.sinks)

    @property
    def turning(self) -> int:
        """The cells that are used again and again."""
        return self.capacity - self.sink_cells

    def empty(self) -> None:
        """Forget everything."""
        self.positions.view(np.int32)[:] = NEVER
        self.blocks.view(np.int64)[:] = 0
        self.sink_blocks.view(np.int64)[:] = self.sink_cells // BLOCK

    def place(self, first: int, count: int) -> None:
        """Give the positions first .. first + count - 1 their cells."""
        cells, positions, blocks = self.cells.view(np.int32), self.positions.view(np.int32), self.blocks.view(np.int64)
        token = 0
        while token < count:
            cell, neighbours = self.cell(first + token)
            n = min(neighbours, count - token)
            cells[token : token + n] = np.arange(cell, cell + n)
            positions[cell : cell + n] = np.arange(first + token, first + token + n)
            blocks[0] = max(blocks[0], (cell + n - 1) // BLOCK + 1, self.sink_cells // BLOCK)
            token += n

    def cell(self, position: int) -> tuple[int, int]:
        """The cell of a position, and how many positions from it on have neighbouring cells."""
        if position < self.sinks:
            return position, self.sinks - position
        turned = (position - self.sinks) % self.turning
        return self.sink_cells + turned, self.turning - turned

    def still_holds(self, n: int, n_past: int) -> bool:
        """Whether all that position n may look at is there, after n_past positions."""
        oldest_wanted = max(self.sinks, n - self.window + 1)
        oldest_held = n_past - self.turning if n_past - self.sinks > self.turning else 0
        return n == 0 or oldest_wanted >= oldest_held


@dataclass(frozen=True)
class LayerCache:
    """Where a layer's keys and values lie, and as which types: see `localinfer.ops.cells`."""

    ring: Ring
    k: Region
    v: Region
    types: Mapping[str, str]  # as kernels want them: k_type and v_type

    @classmethod
    def reserve(cls, plan: Plan, ring: Ring, kv_heads: int, head_dim: int, k_type: str, v_type: str) -> "LayerCache":
        """Cells for a layer; head_dim is a multiple of 32."""
        groups = kv_heads * head_dim // 32 * ring.capacity
        k, v = (plan.region(groups * CELL_BYTES[kind]) for kind in (k_type, v_type))
        return cls(ring, k, v, {"k_type": k_type, "v_type": v_type})

    @property
    def cell_bytes(self) -> int:
        """A key and a value of every head."""
        return (self.k.nbytes + self.v.nbytes) // self.ring.capacity


class Angles:
    """Cosines and sines of position times frequency: a row a position, float32 [cos of all pairs, sin of all pairs].

    They are computed in double precision, for a stretch of positions at a time, because decoding asks one by one.
    """

    STRETCH = 256

    def __init__(self, frequencies: NDArray[np.float64]) -> None:
        self.frequencies = frequencies
        self._stretch: dict[int, NDArray[np.float32]] = {}

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of some positions."""
        angles = positions[:, None] * self.frequencies[None, :]
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def one(self, position: int) -> NDArray[np.float32]:
        """The row of one position."""
        number, within = divmod(position, self.STRETCH)
        if number not in self._stretch:
            self._stretch = {number: self.at(np.arange(number * self.STRETCH, (number + 1) * self.STRETCH))}
        row: NDArray[np.float32] = self._stretch[number][within]
        return row
