"""Attention over the ring of cells: a kernel for any number of tokens, and one that joins what threads shared.

The query heads that share a key head, and in a prompt several tokens, form the rows of a tile: see
`localinfer.ops.attend`. Cells are divided into chunks; each gives a partial state of its own, and these are joined in
the order of the cells: so it makes no difference who computed them. Of many tiles, a thread takes whole ones. Of few,
as when a single token looks back, it takes chunks and leaves their states for `combine`.

The caches are those of `localinfer.ops.cells`, a head after the other. y[token][head][head_dim] and, unless q_out is
0, the same quantized. Blocks before `sink_blocks` are seen by every row, with the queries at `q_sink`.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.ops.attend import DENOMINATOR, SUMS, attend_word, merge_word, prepare_word
from localinfer.ops.cells import CELL_TYPES
from localinfer.ops.hadamard import nothing_word, turn_word
from localinfer.ops.layout import BLOCK, PLENTY, row_bytes
from quant.jit.vectors import f32x16, inline, load, splat, store, total
from quant.products.activations import groups_word

Body = Callable[..., None]

LOG2_E = 1.4426950408889634


def turning(kind: str, head_dim: int) -> Any:
    """The word that turns a head whose partner in the cache is quantized: see `localinfer.ops.hadamard`."""
    return turn_word(head_dim) if CELL_TYPES[kind].scaled else nothing_word()


def tile_words(group: int, head_dim: int, rows: int, k_type: str, v_type: str) -> Any:
    """The words of a tile in a thread's scratch memory, and how much of that they take.

    take(scratch, q, q_sink, positions, first, count, head, heads, scale, sinks)   its queries, from token `first` on
    look(scratch, k, v, cells, window, first, end, sinks, state)                   at blocks first .. end
    """
    attend = attend_word(rows, head_dim, CELL_TYPES[k_type], CELL_TYPES[v_type])
    prepare, turn = prepare_word(rows, head_dim), turning(k_type, head_dim)
    queries = 4 * rows * head_dim
    weights_at = 2 * queries
    positions_at = weights_at + 8 * rows * BLOCK
    taken = positions_at + 64 * rows

    @inline
    def take_row(q: int, scale: float, place: int) -> None:
        for i in range(0, 4 * head_dim, 64):
            store(place + i, load(f32x16, q + i) * splat(f32x16, float32(scale * LOG2_E)))
        turn(place)

    @inline
    def take(
        scratch: int,
        q: int,
        q_sink: int,
        positions: int,
        first: int,
        count: int,
        head: int,
        heads: int,
        scale: float,
        sinks: int,
    ) -> None:
        for row in range(rows):
            token = min(first + row // group, count - 1)
            source, place = 4 * head_dim * (heads * token + head * group + row % group), scratch + 4 * head_dim * row
            store(scratch + positions_at + 4 * row, load(int32, positions + 4 * token))
            take_row(q + source, scale, place)
            if sinks:
                take_row(q_sink + source, scale, place + queries)

    @inline
    def look(
        scratch: int, k: int, v: int, cells: int, window: int, first: int, end: int, sinks: int, state: int
    ) -> None:
        prepare(state)
        weights, rows_at = scratch + weights_at, scratch + positions_at
        attend(scratch, scratch + queries, k, v, cells, rows_at, window, first, end, sinks, weights, state)

    return take, look, taken


def deliver_word(heads: int, head_dim: int, tile: int, passes: int, v_type: str) -> Any:
    """The word deliver(rows, y, q_out, n, token, first): the sums of neighbouring heads of a token, from one on, each
    over its denominator, where they belong. They are quantized together, four groups of 32 at a time."""
    turn, quantize_groups = turning(v_type, head_dim), groups_word(tile, passes)
    stride, groups = row_bytes(head_dim), head_dim // 32

    @inline
    def deliver_head(row: int, y: int) -> None:
        turn(row + SUMS)
        factor = splat(f32x16, float32(1.0) / total(load(f32x16, row + DENOMINATOR)))
        for i in range(0, 4 * head_dim, 64):
            store(y + i, load(f32x16, row + SUMS + i) * factor)

    @inline
    def deliver(rows: int, y: int, q_out: int, n: int, token: int, first: int) -> None:
        for head in range(heads):
            deliver_head(rows + stride * head, y + 4 * (n * token + head_dim * (first + head)))
        if q_out:
            quantize_groups(y + 4 * n * token, q_out, token, groups * first, groups * (first + heads), n)

    return deliver


def attention(group: int, head_dim: int, tile: int, passes: int, rows: int, k_type: str, v_type: str) -> Body:
    """The kernel for tiles of so many rows."""
    take, look, taken = tile_words(group, head_dim, rows, k_type, v_type)
    deliver = deliver_word(group, head_dim, tile, passes, v_type)
    prepare, merge = prepare_word(rows, head_dim), merge_word(head_dim)
    stride, per_tile = row_bytes(head_dim), rows // group
    k_bytes, v_bytes = (CELL_TYPES[kind].head_bytes(head_dim) for kind in (k_type, v_type))

    def body(
        tokens, q, q_sink, k_cache, v_cache, capacity, cell_positions, positions, blocks, sink_blocks,
        window, kv_heads, scale, chunk, partial, y, q_out, stop, part, parts, scratch
    ):  # fmt: skip
        count, heads = load(int64, tokens), kv_heads * group
        tiles = (count + per_tile - 1) // per_tile * kv_heads
        end, sinks = load(int64, blocks), load(int64, sink_blocks)
        chunks = (end + chunk - 1) // chunk
        shared = tiles < PLENTY
        pieces = chunks if shared else 1
        taken_tile = -1
        for item in range(tiles * pieces * part // parts, tiles * pieces * (part + 1) // parts):
            if load(int64, stop):
                return
            pair = item // pieces
            first, head = pair // kv_heads * per_tile, pair % kv_heads
            k, v = k_cache + k_bytes * capacity * head, v_cache + v_bytes * capacity * head
            if pair != taken_tile:
                take(scratch, q, q_sink, positions, first, count, head, heads, scale, sinks)
                taken_tile = pair
            state, piece = scratch + taken, scratch + taken + rows * stride
            begin, last = 0, end
            if shared:
                begin = item % pieces * chunk
                last, piece = min(begin + chunk, end), partial + rows * stride * item
            else:
                prepare(state)
            for start in range(begin, last, chunk):
                look(scratch, k, v, cell_positions, window, start, min(start + chunk, last), sinks, piece)
                if not shared:
                    for row in range(0, rows * stride, stride):
                        merge(state + row, piece + row)
            if not shared:
                for token in range(first, min(first + per_tile, count)):
                    here = state + stride * group * (token - first)
                    deliver(here, y, q_out, heads * head_dim, token, head * group)

    return body


def combine(group: int, head_dim: int, tile: int, passes: int, rows: int, v_type: str) -> Body:
    """The kernel that joins the states of chunks that threads shared; the first is where the whole is gathered."""
    merge, deliver = merge_word(head_dim), deliver_word(1, head_dim, tile, passes, v_type)
    stride, per_tile = row_bytes(head_dim), rows // group

    def body(tokens, blocks, kv_heads, chunk, partial, y, q_out, part, parts, scratch):
        count, heads = load(int64, tokens), kv_heads * group
        chunks = (load(int64, blocks) + chunk - 1) // chunk
        if (count + per_tile - 1) // per_tile * kv_heads >= PLENTY:
            return
        items = count * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            token, which = item // heads, item % heads
            row = token % per_tile * group + which % group
            pair = token // per_tile * kv_heads + which // group
            whole = partial + rows * stride * pair * chunks + stride * row
            for piece in range(1, chunks):
                merge(whole, whole + rows * stride * piece)
            deliver(whole, y, q_out, heads * head_dim, token, which)

    return body
