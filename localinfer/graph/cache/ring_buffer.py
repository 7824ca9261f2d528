"""The KV cache: pages of 64 entries that all sequences share, used as a ring buffer per sequence.

Layers with the same attention window share a ring buffer. For a sliding window, it holds the window and one batch, so
that the tokens of a batch never overwrite positions that its first token attends to. Attention sinks (Xiao et al.,
2023) have their own entries before the ring. Each sequence has its own ring, given by its page table
(`localinfer.graph.cache.page_table`).

With bidirectional attention, a text is evaluated in one batch and the next batch does not use its entries. All layers
then share the same memory, and a window extends to both sides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.page_pool import OutOfPagesError, PagePool
from localinfer.graph.cache.sequence_cache import Bytes, HeldPages
from localinfer.graph.ops.buffers import Region
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.kernels.layout import ANCHORED_TYPES, PAGE_SIZE, SEGMENT_WORDS, page_bytes

EMPTY = np.iinfo(np.int32).max  # the position of an empty entry
MAX_CHUNKS = 64  # of the cache, which threads divide among themselves when a token attends to it
MIN_PACKED_ENTRIES = 64 * PAGE_SIZE  # for the short texts of an encoder: each starts with a new page
PositionOrArray = TypeVar("PositionOrArray", int, NDArray[np.int64])


def round_up_to_page(entries: int) -> int:
    """Return the number of entries rounded up to whole pages."""
    return -(-entries // PAGE_SIZE) * PAGE_SIZE


def as_slice(pages: list[int]) -> list[int] | slice:
    """Return contiguous pages as a slice, which numpy copies faster."""
    is_contiguous = bool(pages) and pages == list(range(pages[0], pages[0] + len(pages)))
    return slice(pages[0], pages[0] + len(pages)) if is_contiguous else pages


class LayerCache(NamedTuple):
    """The keys and values of a layer, head after head, and their types: see `localinfer.kernels.attention.cache_types`.
    If the values are dimensions of the keys, they have no entries of their own and the keys' type."""

    heads: int
    k: Region
    v: Region
    types: Mapping[str, str]  # constants of the kernels: k_type and v_type

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def anchored(self) -> bool:
        """Whether pages of keys have anchors."""
        return self.types["k_type"] in ANCHORED_TYPES.values()


class VisiblePositions(NamedTuple):
    """The positions that a token attends to: the last `window` ones, its own included (without `causal`, those within
    half a window on each side), and the first `sinks` ones.

    With chunked attention, it attends to positions of its own `chunk` only (0: attention is not chunked). No token
    attends to the first `n_masked` positions. `causal_media` and `compression` are as in `AttentionSpec`.
    """

    window: int
    sinks: int = 0
    chunk: int = 0
    n_masked: int = 0
    causal: bool = True
    causal_media: bool = False
    compression: int = 0

    def oldest(self, positions: PositionOrArray) -> PositionOrArray:
        """Return the first position, besides sinks, that a token at each position attends to; it may be negative."""
        nearest = positions - (self.window - 1 if self.causal else self.window // 2)
        return np.maximum(nearest, positions - positions % self.chunk) if self.chunk else nearest


@dataclass(eq=False)
class RingBuffer:
    """The ring buffers of all sequences for some layers.

    A sequence's `sinks` first positions stay in its first `sink_entries` entries; the others cycle through the next
    `ring_entries`. The rest of its `capacity` are `compressed_entries`, one for each run of compressed positions, whose
    position is the last one of the run; it may have no others. There are `total_entries` entries in pages for several
    sequences.
    """

    visible: VisiblePositions
    capacity: int
    pages: PagePool
    entries: Region  # int32 [batch]: the entry of each token of the batch
    positions: Region  # int32 [pages][64]: the position in each entry
    query_positions: Region  # int32 [batch]: the position of each token of the batch
    oldest: Region  # int32 [batch]: the first position that each token attends to
    newest: Region  # int32 [batch]: the last position that each token attends to
    segments: Region  # int64: see `localinfer.kernels.attention.paged_attention`
    compressed: Region  # int32 [batch]: the entry of the run that each token of the batch completes, or -1
    chunk_pages: int  # pages per chunk; partial results of chunks are merged in order
    anchored: bool = False  # pages of keys have anchors: reusing an entry invalidates its whole page
    keeps_all: bool = False  # no entry is ever reused: position n of a causal sequence is in entry n
    compressed_entries: int = 0
    layers: list[LayerCache] = field(default_factory=list)
    tables: "WeakSet[Iterable[int]]" = field(default_factory=WeakSet)  # everything that refers to pages
    held: "WeakSet[HeldPages]" = field(default_factory=WeakSet)  # pages that will be copied

    @classmethod
    def create(
        cls, graph: ComputeGraph, visible: VisiblePositions, *, span: int, n_ctx: int = 0, anchored: bool = False,
        keeps_all: bool = False, n_compressed: int = 0,
    ) -> "RingBuffer":  # fmt: skip
        """Create ring buffers that hold at least `span` positions each, besides the sinks and `n_compressed` runs.

        Attention sums are chunked as for a buffer of the context size, if that is smaller, so a wrapping buffer
        computes the same bits until it wraps. Compressed entries begin with a chunk of their own.
        """
        compressed_entries = round_up_to_page(n_compressed)
        capacity = round_up_to_page(visible.sinks) + round_up_to_page(span)
        pages_in_use = (compressed_entries or min(capacity, round_up_to_page(n_ctx or capacity))) // PAGE_SIZE
        chunk = max(4, -(-pages_in_use // MAX_CHUNKS))
        if compressed_entries:
            capacity = -(-capacity // (chunk * PAGE_SIZE)) * chunk * PAGE_SIZE + compressed_entries
        spare = graph.sequences if graph.sequences > 1 and 0 < span < n_ctx else 0  # for idle sequences
        pages = PagePool(capacity // PAGE_SIZE * (graph.sequences + spare))
        token_bytes, segment_bytes = 4 * graph.batch, 8 + 8 * SEGMENT_WORDS * graph.sequences
        sizes = token_bytes, 4 * PAGE_SIZE * len(pages), token_bytes, token_bytes, token_bytes, segment_bytes
        entries, positions, queries, oldest, newest, segments = map(graph.region, sizes)
        regions = entries, positions, queries, oldest, newest, segments
        compressed = graph.region(token_bytes if n_compressed else 0)
        return cls(visible, capacity, pages, *regions, compressed, chunk, anchored, keeps_all, compressed_entries)

    def add_layer(
        self, graph: ComputeGraph, heads: AttentionHeads, k_type: str, v_type: str, *, values: bool = True
    ) -> LayerCache:
        """Add memory for a layer, with or without `values` of its own. With bidirectional attention, layers of the same
        shape share memory."""
        k_cache_type = ANCHORED_TYPES[k_type] if self.anchored else k_type
        types = {"k_type": k_cache_type, "v_type": v_type if values else k_cache_type}
        n_pages = heads.count_kv * len(self.pages)
        sizes = [
            n_pages * page_bytes(k_type, heads.key_dim, anchored=self.anchored),
            n_pages * page_bytes(v_type, values * heads.value_dim),
        ]
        for layer in () if self.visible.causal else self.layers:
            if (layer.heads, [layer.k.nbytes, layer.v.nbytes]) == (heads.count_kv, sizes):
                return layer
        k, v = map(graph.region, sizes)
        self.layers.append(LayerCache(heads.count_kv, k, v, types))
        return self.layers[-1]

    @property
    def sinks(self) -> int:
        """The number of attention sinks."""
        return self.visible.sinks

    @property
    def total_entries(self) -> int:
        """The entries of all sequences."""
        return len(self.pages) * PAGE_SIZE

    @property
    def sink_entries(self) -> int:
        """The entries before the ring."""
        return round_up_to_page(self.sinks)

    @property
    def ring_entries(self) -> int:
        """The entries that are reused cyclically."""
        return self.capacity - self.sink_entries - self.compressed_entries

    @property
    def compressed_page(self) -> int:
        """The first logical page of compressed entries; 0: there are none."""
        return (self.sink_entries + self.ring_entries) // PAGE_SIZE if self.compressed_entries else 0

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def entry_of(self, position: int) -> tuple[int, int]:
        """Return the entry of a position in a sequence's ring, and how many positions from it on have contiguous
        entries."""
        if position < self.sinks:
            return position, self.sinks - position
        offset = (position - self.sinks) % self.ring_entries
        return self.sink_entries + offset, self.ring_entries - offset

    # --- pages ---

    def allocate_page(self) -> int:
        """Return an empty page. Raises OutOfPagesError."""
        page = self._allocate()
        self.positions.view(np.int32)[PAGE_SIZE * page : PAGE_SIZE * (page + 1)] = EMPTY
        return page

    def _allocate(self) -> int:
        try:
            return self.pages.allocate()
        except OutOfPagesError:
            self._reclaim_page()
            return self.pages.allocate()

    def _reclaim_page(self) -> None:
        """Free a page, if there is one that only waits to be copied, or one that an interrupt has lost."""
        for held in list(self.held):
            held.copy()
            if self.pages.n_free:
                return
        self.pages.rebuild_ref_counts(chain.from_iterable(self.tables))

    @property
    def page_positions(self) -> NDArray[np.int32]:
        """The position in each entry of all pages, a view of shape (pages, PAGE_SIZE)."""
        return self.positions.view(np.int32).reshape(-1, PAGE_SIZE)

    def pages_nbytes(self, count: int) -> int:
        """Return the size of copies of pages in bytes."""
        return (self.nbytes + self.positions.nbytes) // len(self.pages) * count

    def copies(self, pages: list[int]) -> Iterator[Bytes]:
        """Yield copies of the positions of the entries of pages, and of their keys and values in each layer."""
        selected = as_slice(pages)
        yield self.page_positions[selected].copy().view(np.uint8)
        for array in self.cache_arrays:
            yield array[:, selected].copy()

    def copy_page(self, page: int) -> int:
        """Return a copy of a page. Raises OutOfPagesError."""
        copy = self._allocate()
        self.page_positions[copy] = self.page_positions[page]
        for array in self.cache_arrays:
            array[:, copy] = array[:, page]
        return copy

    @cached_property
    def cache_arrays(self) -> Sequence[Bytes]:
        """The keys and the values of each layer, (heads, pages, bytes), once the graph has memory."""
        regions = ((layer.heads, region) for layer in self.layers for region in (layer.k, layer.v))
        return [region.view(np.uint8).reshape(heads, len(self.pages), -1) for heads, region in regions]

    # --- segments ---

    def add_segment(self, at: int, tokens: int, table: int, n_pages: int) -> None:
        """Let the next `tokens` tokens of the batch attend to the pages of a table. `at` is 0 for the first ones."""
        numbers = self.segments.view(np.int64)
        n_before = int(numbers[0]) if at else 0
        first = 1 + SEGMENT_WORDS * n_before
        for offset, number in enumerate((tokens, table, n_pages)):
            numbers[first + offset] = number
        numbers[0] = n_before + 1


def attention_sinks(keep: int, n_ctx: int) -> int:
    """Return the number of attention sinks of a ring buffer: whole pages, unless these take more than half of the
    context.

    With whole pages, each token has the cache position that it has without a ring buffer, so all sums are bit-identical
    until the ring buffer wraps around.
    """
    rounded = round_up_to_page(keep)
    return rounded if rounded <= n_ctx // 2 else min(keep, n_ctx // 2)
