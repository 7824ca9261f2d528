"""The KV cache: which cell a position's key and value lie in, and the pages of 64 cells that all sequences share.

Layers that see the same stretch of the past share a ring. That of a sliding window holds it and one batch, so that the
tokens of a batch never overwrite what their first still looks at. With sinks, the first positions keep cells of their
own in front of the ring (Xiao et al., 2023). Each sequence goes round in a ring of its own, a table of pages
(`localinfer.plan.memory.page_table`).

Where tokens look ahead, too, as an encoder's do, a text is computed in one batch, and nothing of it is of use for the
next one: then all layers share the same cells, and a window reaches to both sides.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from localinfer.ops.layout import ANCHORED, BLOCK, SEGMENT_WORDS, block_bytes
from localinfer.plan.buffers import Region
from localinfer.plan.heads import Heads
from localinfer.plan.memory.memory import Bytes
from localinfer.plan.memory.pages import NoRoom, Pages
from localinfer.plan.plan import Plan

NEVER = np.iinfo(np.int32).max  # the position of a cell that holds nothing
CHUNKS = 64  # at most so many chunks of cells are shared among threads when a token attends
PACKED = 64 * BLOCK  # cells for short texts of an encoder: each begins a block of its own
Where = TypeVar("Where", int, NDArray[np.int64])


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
class Ring:
    """A sequence's `sinks` positions stay in its first `sink_cells` cells; the others go round in the rest of its
    `capacity`. There are pages for several such rings, in `cells_in_all`."""

    window: int
    capacity: int
    sinks: int
    pages: Pages
    cells: Region  # int32 [batch]: the cell of each token of the batch, of all
    positions: Region  # int32 [pages][64]: what each cell holds
    oldest: Region  # int32 [batch]: the first position that each token of the batch sees
    newest: Region  # int32 [batch]: and the last one
    segments: Region  # int64: see `localinfer.ops.attention`
    chunk: int  # so many blocks are looked at before what was found is joined with what others found
    causal: bool = True  # tokens look back only
    anchored: bool = False  # blocks of keys have anchors: nothing of a block outlives the first cell that is used again
    stretch: int = 0  # positions lie in stretches of so many, and tokens see none before their own; 0: there are none
    unseen: int = 0  # so many first positions are seen by nobody
    layers: list[LayerCache] = field(default_factory=list)
    tables: "WeakSet[Iterable[int]]" = field(default_factory=WeakSet)  # of all sequences: the pages of each

    @classmethod
    def reserve(
        cls, plan: Plan, anchored: bool, *, window: int, span: int, sinks: int = 0, n_ctx: int = 0, causal: bool = True,
        stretch: int = 0, unseen: int = 0,
    ) -> "Ring":  # fmt: skip
        """Rings that hold at least `span` positions each beside the sinks. Sums are those of a ring that holds the
        context and no more, if that is smaller: so a ring that wraps changes nothing before it does."""
        capacity = whole_blocks(sinks) + whole_blocks(span)
        blocks_in_use = min(capacity, whole_blocks(n_ctx or capacity)) // BLOCK
        chunk = max(4, -(-blocks_in_use // CHUNKS))
        spare = plan.sequences if plan.sequences > 1 and span < n_ctx else 0  # of sequences that nobody needs just now
        pages = Pages(capacity // BLOCK * (plan.sequences + spare))
        of_tokens, of_segments = 4 * plan.batch, 8 + 8 * SEGMENT_WORDS * plan.sequences
        sizes = of_tokens, 4 * BLOCK * len(pages), of_tokens, of_tokens, of_segments
        cells, positions, oldest, newest, segments = map(plan.region, sizes)
        regions = cells, positions, oldest, newest, segments
        return cls(window, capacity, sinks, pages, *regions, chunk, causal, anchored, stretch, unseen)

    def layer(self, plan: Plan, heads: Heads, k_type: str, v_type: str, *, values: bool = True) -> LayerCache:
        """Cells for one more layer, with `values` of its own or without: those of another one of its shape, where texts
        are of no use for what follows."""
        in_cells = ANCHORED[k_type] if self.anchored else k_type
        types = {"k_type": in_cells, "v_type": v_type if values else in_cells}
        blocks = heads.count_kv * len(self.pages)
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
    def cells_in_all(self) -> int:
        """The cells of all sequences."""
        return len(self.pages) * BLOCK

    @property
    def sink_cells(self) -> int:
        """The cells in front of a ring."""
        return whole_blocks(self.sinks)

    @property
    def ring_cells(self) -> int:
        """The cells that are used again and again."""
        return self.capacity - self.sink_cells

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def cell(self, position: int) -> tuple[int, int]:
        """The cell of a position in a sequence's ring, and how many positions from it on have neighbouring cells."""
        if position < self.sinks:
            return position, self.sinks - position
        behind = (position - self.sinks) % self.ring_cells
        return self.sink_cells + behind, self.ring_cells - behind

    def oldest_seen(self, positions: Where) -> Where:
        """The first position that a token at this one, or at each of these, looks at, which may be before all; beside
        sinks."""
        nearest = positions - (self.window - 1 if self.causal else self.window // 2)
        return np.maximum(nearest, positions - positions % self.stretch) if self.stretch else nearest

    # --- pages ---

    def empty_page(self) -> int:
        """A page that nobody has, with nothing in it. Raises NoRoom."""
        page = self._take()
        self.positions.view(np.int32)[BLOCK * page : BLOCK * (page + 1)] = NEVER
        return page

    def _take(self) -> int:
        try:
            return self.pages.take()
        except NoRoom:
            self.pages.recount(chain.from_iterable(self.tables))
            return self.pages.take()

    def copy_of(self, page: int) -> int:
        """A page that nobody has, with the same in it. Raises NoRoom."""
        copy = self._take()
        for part in (self.positions.view(np.int32).reshape(1, len(self.pages), BLOCK), *self.parts()):
            part[:, copy] = part[:, page]
        return copy

    def parts(self) -> Sequence[Bytes]:
        """The keys and the values of each layer, (heads, pages, bytes)."""
        regions = ((layer.heads, region) for layer in self.layers for region in (layer.k, layer.v))
        return [region.view(np.uint8).reshape(heads, len(self.pages), -1) for heads, region in regions]

    # --- segments ---

    def add_segment(self, at: int, tokens: int, table: int, blocks: int) -> None:
        """Have so many tokens of the batch look at the blocks of a table; the first of a batch are `at` 0."""
        numbers = self.segments.view(np.int64)
        before = int(numbers[0]) if at else 0
        place = 1 + SEGMENT_WORDS * before
        for word, number in enumerate((tokens, table, blocks)):
            numbers[place + word] = number
        numbers[0] = before + 1
