"""The ring KV cache: which cell a position's key and value lie in, and what a position may see.

Layers that see the same stretch of the past share a ring. The ring of a sliding window holds it and one batch, so
that the tokens of a batch never overwrite what their first still looks at. With sinks, the first positions keep cells
of their own in front of the ring (Xiao et al., 2023). Knows positions and cells, no keys and no values.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.plan import Plan, Region

BLOCK = 64  # cells that attention takes at a time
EVERYTHING = 1 << 30  # a window that nothing falls out of
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
        position = np.arange(first, first + count, dtype=np.int32)
        turned = self.sink_cells + (position - self.sinks) % self.turning
        cell = np.where(position < self.sinks, position, turned).astype(np.int32)
        self.cells.view(np.int32)[:count] = cell
        self.positions.view(np.int32)[cell] = position
        used = self.blocks.view(np.int64)
        used[0] = max(int(used[0]), int(cell.max()) // BLOCK + 1, self.sink_cells // BLOCK)

    def still_holds(self, n: int, n_past: int) -> bool:
        """Whether all that position n may look at is there, after n_past positions."""
        oldest_wanted = max(self.sinks, n - self.window + 1)
        oldest_held = n_past - self.turning if n_past - self.sinks > self.turning else 0
        return n == 0 or oldest_wanted >= oldest_held


@dataclass(frozen=True)
class LayerCache:
    """Where a layer's keys and values lie: see `localinfer.ops.rope.append` for the layout."""

    ring: Ring
    k: Region
    v: Region

    @classmethod
    def reserve(cls, plan: Plan, ring: Ring, kv_heads: int, head_dim: int) -> "LayerCache":
        """Cells in half precision for a layer."""
        nbytes = 2 * kv_heads * head_dim * ring.capacity
        return cls(ring, plan.region(nbytes), plan.region(nbytes))


def rope_table(positions: NDArray[np.int64], frequencies: NDArray[np.float64]) -> NDArray[np.float32]:
    """A row a token: the cosines, then the sines, of position times frequency, computed in double precision."""
    angles = positions[:, None] * frequencies[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
