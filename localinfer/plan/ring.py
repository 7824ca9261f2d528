"""The ring KV cache: which cell a position's key and value lie in, and what a position may see.

Layers that see the same stretch of the past share a ring. The ring of a sliding window holds it and one batch, so
that the tokens of a batch never overwrite what their first still looks at. With sinks, the first positions keep cells
of their own in front of the ring (Xiao et al., 2023).

Where tokens look ahead, too, as an encoder's do, a text is computed in one batch, and nothing of it is of use for the
next one: then all layers share the same cells, and a window reaches to both sides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localinfer.ops.layout import ANCHORED, BLOCK, block_bytes
from localinfer.plan.buffers import Region
from localinfer.plan.heads import Heads
from localinfer.plan.memory import Bytes, Memory
from localinfer.plan.plan import Plan

NEVER = np.iinfo(np.int32).max  # the position of a cell that holds nothing
CHUNKS = 64  # at most so many chunks of cells are shared among threads when a token attends
PACKED = 64 * BLOCK  # cells for short texts of an encoder: each begins a block of its own

Positions = NDArray[np.int64]


def whole_blocks(cells: int) -> int:
    """Cells, rounded up to whole blocks."""
    return -(-cells // BLOCK) * BLOCK


@dataclass(frozen=True)
class LayerCache:
    """Where a layer's keys and values lie, a head after the other, and as which types: see `localinfer.ops.cells`.
    Values may be dimensions of keys: then there are no cells for them, and their type is that of keys."""

    heads: int
    k: Region
    v: Region
    types: Mapping[str, str]  # as kernels want them: k_type and v_type

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def anchored(self) -> bool:
        """Whether blocks of keys have anchors."""
        return self.types["k_type"] in ANCHORED.values()


@dataclass(eq=False)
class Ring(Memory):
    """`sinks` positions stay in the first `sink_cells` cells; the others go round in the rest of `capacity`."""

    window: int
    capacity: int
    sinks: int
    cells: Region  # int32 [batch]: the cell of each token of the batch
    positions: Region  # int32 [capacity]: what each cell holds
    oldest: Region  # int32 [batch]: the first position that each token of the batch sees
    newest: Region  # int32 [batch]: and the last one
    blocks: Region  # int64: how many blocks are in use
    sink_blocks: Region  # int64
    chunk: int  # so many blocks are looked at before what was found is joined with what others found
    causal: bool = True  # tokens look back only
    anchored: bool = False  # blocks of keys have anchors: nothing of a block outlives the first cell that is used again
    layers: list[LayerCache] = field(default_factory=list)
    _furthest: int = 0  # positions that were placed since the ring was last empty

    @classmethod
    def reserve(
        cls, plan: Plan, anchored: bool, *, window: int, span: int, sinks: int = 0, n_ctx: int = 0, causal: bool = True
    ) -> "Ring":
        """A ring that holds at least `span` positions beside the sinks. Sums are those of a ring that holds the context
        and no more, if that is smaller: so a ring that wraps changes nothing before it does."""
        capacity = whole_blocks(sinks) + whole_blocks(span)
        blocks_in_use = min(capacity, whole_blocks(n_ctx or capacity)) // BLOCK
        chunk = max(4, -(-blocks_in_use // CHUNKS))
        of_tokens = 4 * plan.batch
        sizes = of_tokens, 4 * capacity, of_tokens, of_tokens, 8, 8
        cells, positions, oldest, newest, blocks, sink_blocks = map(plan.region, sizes)
        return cls(
            window, capacity, sinks, cells, positions, oldest, newest, blocks, sink_blocks, chunk, causal, anchored
        )

    def layer(self, plan: Plan, heads: Heads, k_type: str, v_type: str, *, values: bool = True) -> LayerCache:
        """Cells for one more layer, with `values` of its own or without: those of another one of its shape, where texts
        are of no use for what follows."""
        in_cells = ANCHORED[k_type] if self.anchored else k_type
        types = {"k_type": in_cells, "v_type": v_type if values else in_cells}
        blocks = heads.count_kv * self.capacity // BLOCK
        sizes = [
            blocks * block_bytes(k_type, heads.key_dim, anchored=self.anchored),
            blocks * block_bytes(v_type, values * heads.value_dim),
        ]
        for layer in () if self.causal else self.layers:
            if (layer.heads, [layer.k.nbytes, layer.v.nbytes]) == (heads.count_kv, sizes):
                return layer
        k, v = map(plan.region, sizes)
        self.layers.append(LayerCache(heads.count_kv, k, v, types))
        return self.layers[-1]

    @property
    def sink_cells(self) -> int:
        """The cells in front of the ring."""
        return whole_blocks(self.sinks)

    @property
    def ring_cells(self) -> int:
        """The cells that are used again and again."""
        return self.capacity - self.sink_cells

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def reset(self) -> None:
        self._furthest = 0
        self.positions.view(np.int32)[:] = NEVER
        self.blocks.view(np.int64)[:] = 0
        self.sink_blocks.view(np.int64)[:] = self.sink_cells // BLOCK

    def place(self, first: int, count: int) -> None:
        self._put(first, count)
        self._see(np.arange(first, first + count), 0, first + count)

    def fits(self, lengths: Sequence[int]) -> bool:
        return not self.sinks and self._begin(lengths)[-1] <= self.capacity

    def pack(self, lengths: Sequence[int]) -> None:
        *begin, end = self._begin(lengths)
        first, own = np.repeat(begin, lengths), np.repeat(lengths, lengths)
        at = first + np.concatenate([np.arange(length) for length in lengths])
        self.reset()
        self.cells.view(np.int32)[: len(at)] = at
        self.positions.view(np.int32)[at] = at
        self.blocks.view(np.int64)[0] = -(-end // BLOCK)
        self._see(at, first, first + own)

    def _begin(self, lengths: Sequence[int]) -> list[int]:
        """In which cells texts begin, and the end of the last one. A text lies in as few of attention's chunks of
        blocks as if it were alone, so that the same sums are added up in the same order."""
        begin, chunk, at = [], self.chunk * BLOCK, 0
        for length in lengths:
            at = whole_blocks(at)
            if at % chunk + length > chunk:
                at = -(-at // chunk) * chunk
            begin.append(at)
            at += length
        return [*begin, at]

    def _see(self, at: Positions, begin: Positions | int, end: Positions | int) -> None:
        """Have the tokens at these positions see what is near enough of their texts, from `begin` to `end`."""
        back, ahead = (self.window - 1, 0) if self.causal else (self.window // 2, self.window // 2)
        self.oldest.view(np.int32)[: len(at)] = np.maximum(at - back, begin)
        self.newest.view(np.int32)[: len(at)] = np.minimum(at + ahead, end - 1)

    def _put(self, first: int, count: int) -> None:
        """Positions from `first` on into their cells."""
        cells, positions, blocks = self.cells.view(np.int32), self.positions.view(np.int32), self.blocks.view(np.int64)
        self._furthest = max(self._furthest, first + count)
        token = 0
        while token < count:
            cell, neighbours = self.cell(first + token)
            n = min(neighbours, count - token)
            cells[token : token + n] = np.arange(cell, cell + n)
            positions[cell : cell + n] = np.arange(first + token, first + token + n)
            blocks[0] = max(blocks[0], (cell + n - 1) // BLOCK + 1, self.sink_cells // BLOCK)
            token += n

    def commit(self, n_past: int) -> None:
        """Nothing to do: a cell is what was last placed in it."""

    def cell(self, position: int) -> tuple[int, int]:
        """The cell of a position, and how many positions from it on have neighbouring cells."""
        if position < self.sinks:
            return position, self.sinks - position
        behind = (position - self.sinks) % self.ring_cells
        return self.sink_cells + behind, self.ring_cells - behind

    def reach(self, n: int) -> int:
        oldest_wanted = max(self.sinks, n - self.window + 1)
        used = self._furthest - self.sinks
        used = whole_blocks(used) if self.anchored else used
        oldest_held = used + self.sinks - self.ring_cells if used > self.ring_cells else 0
        return n if oldest_wanted >= oldest_held else 0

    def rewind(self, n: int) -> None:
        """Nothing to do: positions that are further on are not looked at."""

    def keep(self) -> None:
        """Nothing to do: what is remembered stays for as long as its cells do."""

    def save(self) -> Sequence[Bytes]:
        """Numbers of positions and of blocks, the positions of cells, then keys and values of the blocks in use."""
        used = int(self.blocks.view(np.int64)[0])
        numbers = np.array([self._furthest, used], np.int64).view(np.uint8)
        positions = self.positions.view(np.int32)[: used * BLOCK].copy()
        return [numbers, positions.view(np.uint8), *(part.copy() for part in self._parts(used))]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        self._furthest, used = (int(number) for number in saved[0].view(np.int64))
        if not 0 <= used * BLOCK <= self.capacity:
            raise ValueError(f"{used} blocks are in use, of {self.capacity // BLOCK}")
        self.blocks.view(np.int64)[0] = used
        self.positions.view(np.int32)[: used * BLOCK] = saved[1].view(np.int32)
        for part, kept in zip(self._parts(used), saved[2:], strict=True):
            part[:] = kept.reshape(part.shape)

    def _parts(self, used: int) -> Sequence[Bytes]:
        """The keys and the values of each layer in so many blocks: a row for each head."""
        regions = ((layer.heads, region) for layer in self.layers for region in (layer.k, layer.v))
        whole = [region.view(np.uint8).reshape(heads, -1) for heads, region in regions]
        return [rows[:, : rows.shape[1] * used * BLOCK // self.capacity] for rows in whole]
