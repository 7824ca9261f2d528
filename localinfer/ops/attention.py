"""Attention over the ring of cells: two kernels, for many tokens and for a few, that agree to the last bit.

The query heads that share a key head, and in a prompt several tokens, form the rows of a tile: see
`localinfer.ops.attend`. Cells are divided into chunks; each gives a partial result of its own, and these are joined
in the order of the cells: by the thread that computed them all in a prompt, by `combine` where the threads share the
chunks of a single token.

k_cache[head][panel][head_dim][16], v_cache[head][cell][head_dim], halves. y[token][head][head_dim] and, unless q_out is
0, the same quantized. Blocks before `sink_blocks` are seen by every row, with the queries at `q_sink`.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.ops.attend import attend_word, merge_word, prepare_word
from localinfer.ops.layout import BLOCK, EVERYTHING, state_bytes, tile_rows
from quant.activations import group_word
from quant.vectors import f32x16, inline, load, splat, store

Body = Callable[..., None]


@inline
def pack_row(q: int, head_dim: int, scale: float, packed: int, rows: int, row: int) -> None:
    """Scale a query and write it into its column of a packed tile."""
    for i in range(head_dim):
        store(packed + 4 * (rows * i + row), load(float32, q + 4 * i) * float32(scale))


def tile_words(group: int, head_dim: int, rows: int) -> Any:
    """The words of a tile in a thread's scratch memory, and how much of that they take.

    take(scratch, q, q_sink, positions, first, count, head, heads, scale, sinks)   its queries, from token `first` on
    look(scratch, k, v, cells, window, first, end, sinks, state)                   at blocks first .. end
    """
    attend, prepare = attend_word(rows, head_dim), prepare_word(rows, head_dim)
    queries = 4 * rows * head_dim
    weights_at, positions_at, taken = 2 * queries, 2 * queries + 4 * rows * BLOCK, 2 * queries + (4 * BLOCK + 64) * rows

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
            place = 4 * head_dim * (heads * token + head * group + row % group)
            store(scratch + positions_at + 4 * row, load(int32, positions + 4 * token))
            pack_row(q + place, head_dim, scale, scratch, rows, row)
            if sinks:
                pack_row(q_sink + place, head_dim, scale, scratch + queries, rows, row)

    @inline
    def look(
        scratch: int, k: int, v: int, cells: int, window: int, first: int, end: int, sinks: int, state: int
    ) -> None:
        weights, rows_at = scratch + weights_at, scratch + positions_at
        prepare(state)
        if first < sinks:
            last = min(sinks, end)
            attend(scratch + queries, k, v, cells, rows_at, EVERYTHING, first, last, weights, state)
        attend(scratch, k, v, cells, rows_at, window, max(first, sinks), end, weights, state)

    return take, look, taken


def deliver_word(head_dim: int, tile: int, passes: int) -> Any:
    """The word deliver(state, sums, y, q_out, n, token, head): a row's sums over its denominator, where they belong."""
    quantize_group = group_word(tile, passes)

    @inline
    def deliver(state: int, sums: int, y: int, q_out: int, n: int, token: int, head: int) -> None:
        factor = splat(f32x16, float32(1.0) / load(float32, state + 4))
        for i in range(head_dim * head, head_dim * (head + 1), 32):
            at = sums + 4 * (i - head_dim * head)
            v0, v1 = load(f32x16, at) * factor, load(f32x16, at + 64) * factor
            store(y + 4 * (n * token + i), v0)
            store(y + 4 * (n * token + i) + 64, v1)
            if q_out:
                quantize_group(v0, v1, q_out, token, i // 32, n)

    return deliver


def prompt(group: int, head_dim: int, tile: int, passes: int) -> Body:
    """The kernel for many tokens: a thread takes whole tiles of a key head's query rows."""
    rows = tile_rows(group, many=True)
    take, look, taken = tile_words(group, head_dim, rows)
    prepare, merge, deliver = prepare_word(rows, head_dim), merge_word(head_dim), deliver_word(head_dim, tile, passes)
    size, per_tile = state_bytes(rows, head_dim), rows // group

    def body(
        tokens, q, q_sink, k_cache, v_cache, capacity, cell_positions, positions, blocks, sink_blocks,
        window, kv_heads, scale, chunk, partial, y, q_out, stop, part, parts, scratch
    ):  # fmt: skip
        count, heads = load(int64, tokens), kv_heads * group
        tiles = (count + per_tile - 1) // per_tile
        state, piece = scratch + taken, scratch + taken + size
        end, sinks = load(int64, blocks), load(int64, sink_blocks)
        for item in range(part, tiles * kv_heads, parts):
            if load(int64, stop):
                return
            first, head = item // kv_heads * per_tile, item % kv_heads
            take(scratch, q, q_sink, positions, first, count, head, heads, scale, sinks)
            k, v = k_cache + 2 * head_dim * capacity * head, v_cache + 2 * head_dim * capacity * head
            prepare(state)
            for start in range(0, end, chunk):
                look(scratch, k, v, cell_positions, window, start, min(start + chunk, end), sinks, piece)
                for row in range(rows):
                    sums = 64 * rows + 4 * head_dim * row
                    merge(state + 64 * row, state + sums, piece + 64 * row, piece + sums)
            for row in range(min(rows, (count - first) * group)):
                sums, which = state + 64 * rows + 4 * head_dim * row, head * group + row % group
                deliver(state + 64 * row, sums, y, q_out, heads * head_dim, first + row // group, which)

    return body


def token(group: int, head_dim: int) -> Body:
    """The kernel for a few tokens: threads share chunks of cells, and leave a partial state of each for `combine`."""
    take, look, _ = tile_words(group, head_dim, group)
    size = state_bytes(group, head_dim)

    def body(
        tokens, q, q_sink, k_cache, v_cache, capacity, cell_positions, positions, blocks, sink_blocks,
        window, kv_heads, scale, chunk, partial, y, q_out, stop, part, parts, scratch
    ):  # fmt: skip
        count, end, sinks = load(int64, tokens), load(int64, blocks), load(int64, sink_blocks)
        chunks = (end + chunk - 1) // chunk
        items = count * kv_heads * chunks
        for item in range(items * part // parts, items * (part + 1) // parts):
            pair, first = item // chunks, item % chunks * chunk
            one, head = pair // kv_heads, pair % kv_heads
            take(scratch, q, q_sink, positions, one, count, head, kv_heads * group, scale, sinks)
            k, v = k_cache + 2 * head_dim * capacity * head, v_cache + 2 * head_dim * capacity * head
            look(scratch, k, v, cell_positions, window, first, min(first + chunk, end), sinks, partial + size * item)

    return body


def combine(group: int, head_dim: int, passes: int) -> Body:
    """The kernel that joins the partial states of a few tokens; the first one is where the whole is gathered."""
    size, merge, deliver = state_bytes(group, head_dim), merge_word(head_dim), deliver_word(head_dim, 0, passes)

    def body(tokens, blocks, kv_heads, chunk, partial, y, q_out, part, parts, scratch):
        chunks = (load(int64, blocks) + chunk - 1) // chunk
        heads = kv_heads * group
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            one, which = item // heads, item % heads
            head, row = which // group, which % group
            first = partial + size * (one * kv_heads + head) * chunks
            whole, sums = first + 64 * row, first + 64 * group + 4 * head_dim * row
            for part in range(size, size * chunks, size):
                merge(whole, sums, whole + part, sums + part)
            deliver(whole, sums, y, q_out, heads * head_dim, one, which)

    return body


def nothing() -> Body:
    """The kernel that does nothing: the other half of an op that only few tokens need."""

    def body(tokens, blocks, kv_heads, chunk, partial, y, q_out, part, parts, scratch):
        pass

    return body
