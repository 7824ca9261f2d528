"""Attention of a tile of queries to pages of the cache: scores, online softmax, weighted sums of values.

Each key and value is loaded and converted once for all rows of a tile. Pages of 64 entries are read in the order of the
sequence's page table. An entry counts for a row if its position is in the row's span, from the oldest to the newest
visible position. The rows of a tile do not affect each other's bits.

Keys and values are laid out as in `localinfer.kernels.attention.cache_types`. If values are dimensions of the keys, 32
of them at a time are transposed from panels to rows. Queries, weights and spans are in
`localinfer.kernels.attention.tile_scratch`; states are described in `localinfer.kernels.attention.online_softmax`.
"""

from typing import Any, NamedTuple

from numba import float32, int32, int64

from localinfer.kernels.attention.online_softmax import (
    NOTHING,
    SUMS,
    Span,
    make_page_visibility,
    make_softmax_update,
    oldest_visible,
)
from localinfer.kernels.attention.scores import make_score_page
from localinfer.kernels.attention.shape import AttentionVariant, HeadSizes
from localinfer.kernels.attention.tile_scratch import TileScratch
from localinfer.kernels.attention.weighted_values import make_accumulate_page
from localinfer.kernels.layout import BIAS_ROW, PAGE_SIZE, PANEL_KEYS
from quant.jit.vectors import inline, load


class CacheHead(NamedTuple):
    """A key head of a layer's cache, and the page table of a sequence."""

    k: int  # address of the head's pages of keys
    v: int  # address of the head's pages of values; that of the keys if values are dimensions of the keys
    positions: int  # address of the positions of all entries, int32
    page_table: int  # address of the page number of each logical page, int32
    sink_pages: int  # logical pages with attention sinks
    compressed_page: int  # the first logical page of compressed entries; 0: there are none
    cap: float  # of soft-capped scores
    biases: int  # address of the biases of scores, float32 [query head][BIAS_ROW]


class PageRange(NamedTuple):
    """Logical pages first .. end - 1, and the address of the keys to prefetch while the last one is processed."""

    first: int
    end: int
    next_keys: int


def make_chosen_of_page(rows: int) -> Any:
    """Make chosen_of_page(chosen, number): return the bits of the entries of a page that any row attends to."""

    @inline
    def chosen_of_page(chosen: int, number: int) -> Any:
        bits: Any = int64(0)
        for row in range(chosen, chosen + 8 * rows, 8):
            bits |= load(int64, load(int64, row) + 8 * number)
        return bits

    return chosen_of_page


def make_attend_chunk(variant: AttentionVariant) -> Any:
    """Make attend(cache, pages, sizes, tile, state): attend to the pages of a `PageRange` of a `CacheHead`.

    `tile` is the `TileScratch` with the queries and the spans of the tile; the state is updated.
    """
    rows, sloped, biased, selected = variant.rows, variant.sloped, variant.biased, variant.selected
    score_page, accumulate_page = make_score_page(variant), make_accumulate_page(variant)
    page_visibility, update_softmax = make_page_visibility(rows), make_softmax_update(
        variant.capped, sloped, biased, selected
    )
    chosen_of_page = make_chosen_of_page(rows)

    @inline
    def attend(cache: CacheHead, pages: PageRange, sizes: HeadSizes, tile: TileScratch, state: int) -> None:
        p, spans = tile.weights, tile.spans
        for number in range(pages.first, pages.end):
            entry = cache.page_table + 4 * number
            page = int64(load(int32, entry))
            next_keys = (
                cache.k + sizes.k_page_bytes * int64(load(int32, entry + 4))
                if number + 1 < pages.end
                else pages.next_keys
            )
            positions, values = cache.positions + 4 * PAGE_SIZE * page, cache.v + sizes.v_page_bytes * page
            sink = int64(number < cache.sink_pages)
            queries = tile.sink_queries if sink else tile.queries
            unlimited = sink | int64(cache.compressed_page > 0 and number >= cache.compressed_page)
            visible_panels = page_visibility(positions, spans, unlimited)
            if visible_panels == NOTHING or (selected and chosen_of_page(tile.chosen, number) == 0):
                continue
            panels = min(visible_panels, PAGE_SIZE // PANEL_KEYS)  # entries after those have no weight for any row
            score_page(queries, cache.k + sizes.k_page_bytes * page, p, panels, values, sizes)
            for row in range(rows):
                oldest, newest = oldest_visible(spans + 8 * row, unlimited), load(int32, spans + 8 * row + 4)
                query = load(int32, tile.positions + 4 * row) if sloped or biased else newest
                slope = load(float32, tile.slopes + 4 * row) if sloped else 0.0
                table = cache.biases + 4 * BIAS_ROW * int64(load(int32, tile.heads + 4 * row)) if biased else 0
                chosen: Any = load(int64, load(int64, tile.chosen + 8 * row) + 8 * number) if selected else int64(0)
                span = Span(oldest, newest, query, slope, table, chosen)
                update_softmax(
                    p + 4 * PAGE_SIZE * row,
                    positions,
                    span,
                    cache.cap,
                    visible_panels,
                    state + sizes.state_bytes * row,
                    sizes.value_dim,
                )
            accumulate_page(p, values, state + SUMS, PANEL_KEYS * panels, next_keys, sizes)

    return attend
