"""A tile of queries looks at cells: scores, the online softmax, weighted sums of values.

Every key and value is loaded and widened once for all rows of a tile. Cells are read in blocks of 64, in the order of
their sequence's table, whatever their positions: a cell counts for a row if its position is within the row's span, from
the oldest that it sees to the newest. What rows share a tile changes no bit of any row.

Layouts: keys and values as in `localinfer.ops.cells`; or values are some dimensions of keys, which are turned from
panels to cells for that, 32 of a block at a time. A tile of queries [rows][key_dim]; a block's weights [rows][64];
spans and states of rows as in `localinfer.ops.softmax`.
"""

from typing import Any

from numba import int32, int64

from localinfer.ops.cells import CellType
from localinfer.ops.layout import BLOCK, PANEL, row_bytes
from localinfer.ops.scores import score_block_word
from localinfer.ops.softmax import NOTHING, SUMS, oldest_of, sight_word, soften_word
from localinfer.ops.values import weigh_block_word, weigh_keys_word
from quant.jit.vectors import inline, load


def attend_word(
    rows: int, key_dim: int, key_size: int, value_dim: int, value_cell: int, k_type: CellType, v_type: CellType,
    capped: int,
) -> Any:  # fmt: skip
    """The word attend(q, q_sink, k, v, cells, spans, cap, table, first, end, beyond, sinks, p, state): blocks
    first .. end.

    The table, int32, says where a sequence's blocks lie; at `beyond` are the keys that will be looked at then. `p` is
    room for `weights_bytes`; the state goes on from what it holds. Where cells of `value_cell` dimensions are wider
    than the values, these are the last dimensions of keys, and v is k.
    """
    k_block, v_block = k_type.block_bytes(key_dim), v_type.block_bytes(value_cell)
    if value_cell == value_dim:
        score_block = score_block_word(k_type, rows, key_dim, key_size, v_block)
        weigh_block = weigh_block_word(v_type, rows, value_dim, k_block)
    else:
        score_block = score_block_word(k_type, rows, key_dim, key_size, 0)
        weigh_block = weigh_keys_word(k_type, rows, key_dim, value_dim, k_block)
    sight, soften, stride = sight_word(rows), soften_word(value_dim, capped), row_bytes(value_dim)

    @inline
    def attend(
        q: int,
        q_sink: int,
        k: int,
        v: int,
        cells: int,
        spans: int,
        cap: float,
        table: int,
        first: int,
        end: int,
        beyond: int,
        sinks: int,
        p: int,
        state: int,
    ) -> None:
        for number in range(first, end):
            block = int64(load(int32, table + 4 * number))
            ahead = k + k_block * int64(load(int32, table + 4 * number + 4)) if number + 1 < end else beyond
            here, values = cells + 4 * BLOCK * block, v + v_block * block
            sink = int64(number < sinks)
            queries = q_sink if sink else q
            seen = sight(here, spans, sink)
            if seen == NOTHING:
                continue
            panels = min(seen, BLOCK // PANEL)  # cells behind those have no weight for anybody
            score_block(queries, k + k_block * block, p, values, panels)
            for row in range(rows):
                oldest, newest = oldest_of(spans + 8 * row, sink), load(int32, spans + 8 * row + 4)
                soften(p + 4 * BLOCK * row, here, oldest, newest, cap, seen, state + stride * row)
            weigh_block(p, values, state + SUMS, p + 4 * BLOCK * rows, ahead, PANEL * panels)

    return attend
