"""Attention of a tile of queries to pages of the cache: scores, online softmax, weighted sums of values.

Each key and value is loaded and converted once for all rows of a tile. Pages of 64 entries are read in the order of the
sequence's page table. An entry counts for a row if its position is in the row's span, from the oldest to the newest
visible position. The rows of a tile do not affect each other's bits.

Keys and values are laid out as in `localinfer.kernels.attention.cache_types`. If values are dimensions of the keys, 32
of them at a time are transposed from panels to rows. A tile of queries is [rows][key_dim], a page's weights are
[rows][64]; spans and states are described in `localinfer.kernels.attention.online_softmax`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import int32, int64

from localinfer.kernels.attention.cache_types import CACHE_TYPES
from localinfer.kernels.attention.online_softmax import (
    NOTHING,
    SUMS,
    make_page_visibility,
    make_softmax_update,
    oldest_visible,
)
from localinfer.kernels.attention.scores import make_score_page
from localinfer.kernels.attention.shape import AttentionShape
from localinfer.kernels.attention.weighted_values import make_accumulate_keys, make_accumulate_page
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, page_weights_bytes, row_state_bytes
from quant.jit.vectors import inline, load


class CacheHead(NamedTuple):
    """A key head of a layer's cache, and the page table of a sequence."""

    k: int  # address of the head's pages of keys
    v: int  # address of the head's pages of values; that of the keys if values are dimensions of the keys
    positions: int  # address of the positions of all entries, int32
    page_table: int  # address of the page number of each logical page, int32
    sink_pages: int  # logical pages with attention sinks
    cap: float  # of soft-capped scores


class PageRange(NamedTuple):
    """Logical pages first .. end - 1, and the address of the keys to prefetch while the last one is processed."""

    first: int
    end: int
    next_keys: int


@dataclass(frozen=True)
class TileScratch:
    """The layout of a tile's scratch memory: queries, queries for pages with attention sinks, weights of a page, and
    spans."""

    rows: int
    key_dim: int

    @property
    def queries_bytes(self) -> int:
        """The bytes of the tile's queries, float32 [rows][key_dim]."""
        return 4 * self.rows * self.key_dim

    @property
    def weights_at(self) -> int:
        """The offset of the weights."""
        return 2 * self.queries_bytes

    @property
    def spans_at(self) -> int:
        """The offset of the spans, int32 [rows][2]."""
        return self.weights_at + page_weights_bytes(self.rows)

    @property
    def nbytes(self) -> int:
        """The size of the whole."""
        return self.spans_at + 64 * self.rows


def make_page_products(shape: AttentionShape) -> tuple[Any, Any]:
    """Make score_page and accumulate_page: see `localinfer.kernels.attention.scores` and
    `localinfer.kernels.attention.weighted_values`."""
    k_type, v_type, rows, key_dim = CACHE_TYPES[shape.k_type], CACHE_TYPES[shape.v_type], shape.rows, shape.key_dim
    k_page_bytes, v_page_bytes = k_type.block_bytes(key_dim), v_type.block_bytes(shape.value_entry_dim)
    if shape.value_entry_dim == shape.value_dim:
        score_page = make_score_page(k_type, rows, key_dim, shape.key_size, v_page_bytes)
        return score_page, make_accumulate_page(v_type, rows, shape.value_dim, k_page_bytes)
    score_page = make_score_page(k_type, rows, key_dim, shape.key_size, 0)
    return score_page, make_accumulate_keys(k_type, rows, key_dim, shape.value_dim, k_page_bytes)


def make_attend_chunk(shape: AttentionShape) -> Any:
    """Make attend(cache, pages, scratch, state): attend to the pages of a `PageRange` of a `CacheHead`.

    The scratch memory has the queries and the spans of the tile, the state is updated.
    """
    rows, tile, stride = shape.rows, TileScratch(shape.rows, shape.key_dim), row_state_bytes(shape.value_dim)
    k_page_bytes = CACHE_TYPES[shape.k_type].block_bytes(shape.key_dim)
    v_page_bytes = CACHE_TYPES[shape.v_type].block_bytes(shape.value_entry_dim)
    queries_bytes, weights_at, spans_at = tile.queries_bytes, tile.weights_at, tile.spans_at
    score_page, accumulate_page = make_page_products(shape)
    page_visibility, update_softmax = make_page_visibility(rows), make_softmax_update(shape.value_dim, shape.capped)

    @inline
    def attend(cache: CacheHead, pages: PageRange, scratch: int, state: int) -> None:
        p, spans = scratch + weights_at, scratch + spans_at
        for number in range(pages.first, pages.end):
            entry = cache.page_table + 4 * number
            page = int64(load(int32, entry))
            next_keys = (
                cache.k + k_page_bytes * int64(load(int32, entry + 4)) if number + 1 < pages.end else pages.next_keys
            )
            positions, values = cache.positions + 4 * PAGE_SIZE * page, cache.v + v_page_bytes * page
            sink = int64(number < cache.sink_pages)
            queries = scratch + queries_bytes if sink else scratch
            visible_panels = page_visibility(positions, spans, sink)
            if visible_panels == NOTHING:
                continue
            panels = min(visible_panels, PAGE_SIZE // PANEL_KEYS)  # entries after those have no weight for any row
            score_page(queries, cache.k + k_page_bytes * page, p, values, panels)
            for row in range(rows):
                oldest, newest = oldest_visible(spans + 8 * row, sink), load(int32, spans + 8 * row + 4)
                update_softmax(
                    p + 4 * PAGE_SIZE * row, positions, oldest, newest, cache.cap, visible_panels, state + stride * row
                )
            accumulate_page(p, values, state + SUMS, p + 4 * PAGE_SIZE * rows, next_keys, PANEL_KEYS * panels)

    return attend
