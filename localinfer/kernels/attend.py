"""Attention of a tile of queries to pages of the cache: scores, online softmax, weighted sums of values.

Each key and value is loaded and converted once for all rows of a tile. Pages of 64 entries are read in the order of the
sequence's page table. An entry counts for a row if its position is in the row's span, from the oldest to the newest
visible position. The rows of a tile do not affect each other's bits.

Keys and values are laid out as in `localinfer.kernels.cache_types`. If values are dimensions of the keys, 32 of them at
a time are transposed from panels to rows. A tile of queries is [rows][key_dim], a page's weights are [rows][64]; spans
and states are described in `localinfer.kernels.online_softmax`.
"""

from typing import Any

from numba import int32, int64

from localinfer.kernels.cache_types import CacheType
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, row_state_bytes
from localinfer.kernels.online_softmax import NOTHING, SUMS, make_page_visibility, make_softmax_update, oldest_visible
from localinfer.kernels.scores import make_score_page
from localinfer.kernels.weighted_values import make_accumulate_keys, make_accumulate_page
from quant.jit.vectors import inline, load


def make_attend_chunk(
    rows: int, key_dim: int, key_size: int, value_dim: int, value_entry_dim: int, k_type: CacheType, v_type: CacheType,
    capped: int,
) -> Any:  # fmt: skip
    """Make attend(q, q_sink, k, v, positions, spans, cap, table, first, end, last_prefetch, sinks, p, state): attend to
    the pages first .. end - 1 of a page table.

    The table, int32, maps logical pages to pages; `last_prefetch` is the address of the keys to prefetch last.
    `p` is scratch of `page_weights_bytes`; the state is updated. If `value_entry_dim` > value_dim, the values are the
    last dimensions of the keys, and v is k.
    """
    k_page_bytes, v_page_bytes = k_type.block_bytes(key_dim), v_type.block_bytes(value_entry_dim)
    if value_entry_dim == value_dim:
        score_page = make_score_page(k_type, rows, key_dim, key_size, v_page_bytes)
        accumulate_page = make_accumulate_page(v_type, rows, value_dim, k_page_bytes)
    else:
        score_page = make_score_page(k_type, rows, key_dim, key_size, 0)
        accumulate_page = make_accumulate_keys(k_type, rows, key_dim, value_dim, k_page_bytes)
    page_visibility, update_softmax, stride = (
        make_page_visibility(rows),
        make_softmax_update(value_dim, capped),
        row_state_bytes(value_dim),
    )

    @inline
    def attend(
        q: int,
        q_sink: int,
        k: int,
        v: int,
        positions: int,
        spans: int,
        cap: float,
        table: int,
        first: int,
        end: int,
        last_prefetch: int,
        sinks: int,
        p: int,
        state: int,
    ) -> None:
        for number in range(first, end):
            page = int64(load(int32, table + 4 * number))
            next_keys = (
                k + k_page_bytes * int64(load(int32, table + 4 * number + 4)) if number + 1 < end else last_prefetch
            )
            page_positions, values = positions + 4 * PAGE_SIZE * page, v + v_page_bytes * page
            sink = int64(number < sinks)
            queries = q_sink if sink else q
            visible_panels = page_visibility(page_positions, spans, sink)
            if visible_panels == NOTHING:
                continue
            panels = min(visible_panels, PAGE_SIZE // PANEL_KEYS)  # entries after those have no weight for any row
            score_page(queries, k + k_page_bytes * page, p, values, panels)
            for row in range(rows):
                oldest, newest = oldest_visible(spans + 8 * row, sink), load(int32, spans + 8 * row + 4)
                update_softmax(
                    p + 4 * PAGE_SIZE * row, page_positions, oldest, newest, cap, visible_panels, state + stride * row
                )
            accumulate_page(p, values, state + SUMS, p + 4 * PAGE_SIZE * rows, next_keys, PANEL_KEYS * panels)

    return attend
