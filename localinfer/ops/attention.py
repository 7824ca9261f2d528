"""Attention over pages of cells: a kernel for any number of tokens, and one that joins what threads shared.

A batch is segments, one behind the other: tokens of a sequence, which see that sequence alone. A segment's queries of
the heads that share a key head, token after token, are cut into tiles of so many rows: see `localinfer.ops.attend`. Its
blocks of cells are divided into chunks; each gives a partial state of its own, and these are joined in the order of the
cells: so it makes no difference who computed them. Of many tiles, a thread takes whole ones. Of few, as when a single
token looks far back, it takes chunks and leaves their states for `combine`.

The words of a segment (`localinfer.ops.segments`) are the address of its sequence's table, int32, which says in which
page of 64 cells each block lies, and the number of its blocks.

Queries are q[token][head][key_dim], the caches those of `localinfer.ops.cells`, a head after the other. The results are
y[token][head][value_size] and, unless q_out is 0, the same quantized. Cells may be wider than heads: value_dim of them
are values, of which the first value_size are given out. Where value_cell is more than that, they are the last value_dim
dimensions of keys in cells of so many. A token sees the cells whose positions are from its `oldest` to its `newest`,
int32 each; of the first `sink_blocks` blocks all up to its newest, with the queries at `q_sink`. Scores are multiplied
by `scale` and, if `capped`, kept within `cap`. At `attn_sinks`, unless that is 0, each head has one score more, which
takes its share of the weight and has no value (gpt-oss: OpenAI, 2025).
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.ops.attend import attend_word
from localinfer.ops.cells import CELL_TYPES
from localinfer.ops.hadamard import hadamard_word, nothing_word, part_of
from localinfer.ops.layout import BLOCK, ENOUGH, PLENTY, row_bytes, weights_bytes
from localinfer.ops.segments import SEGMENT_BYTES, segments_end
from localinfer.ops.softmax import DENOMINATOR, LOG2_E, SUMS, merge_word, prepare_word, sink_word
from quant.jit.vectors import f32x16, inline, load, splat, store, total
from quant.products.activations import groups_word

Body = Callable[..., None]


@inline
def chunks_of(segment: int, chunk: int) -> int:
    """The chunks that a segment's blocks are divided into."""
    return (load(int64, segment + 16) + chunk - 1) // chunk


def tiles_words(group: int, rows: int, single: int) -> tuple[Any, Any, Any]:
    """Tiles of so many rows; in a segment of a `single` token, of fewer: rows_of(segment), tiles_of(segment, kv_heads),
    and of all segments are_shared(segments, kv_heads, chunk): whether they are so few that threads share them, or their
    chunks if there are several."""

    @inline
    def rows_of(segment: int) -> int:
        return single if load(int64, segment) == 1 else rows

    @inline
    def tiles_of(segment: int, kv_heads: int) -> int:
        return (load(int64, segment) * group + rows_of(segment) - 1) // rows_of(segment) * kv_heads

    @inline
    def are_shared(segments: int, kv_heads: int, chunk: int) -> int:
        tiles, chunks = 0, 0
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            tiles, chunks = tiles + tiles_of(segment, kv_heads), max(chunks, chunks_of(segment, chunk))
        return tiles < (PLENTY if chunks > 1 else ENOUGH)

    return rows_of, tiles_of, are_shared


def hadamard_of(kind: str, dim: int, whole: int) -> Any:
    """The word that transforms a head whose partner in the cache is quantized, or as many dimensions of a `whole` cell:
    see `localinfer.ops.hadamard`."""
    return hadamard_word(dim, part_of(whole)) if CELL_TYPES[kind].scaled and dim else nothing_word()


def tile_words(
    group: int, key_dim: int, key_size: int, value_dim: int, value_cell: int, rows: int, k_type: str, v_type: str,
    capped: int,
) -> tuple[Any, Any, int]:  # fmt: skip
    """The words of a tile in a thread's scratch memory, and how much of that they take.

    take(scratch, q, q_sink, oldest, newest, first, count, head, heads, scale, sinks)  its queries, from row `first` on
    look(scratch, k, v, cells, cap, table, first, end, beyond, sinks, state)           at blocks first .. end
    """
    kinds = CELL_TYPES[k_type], CELL_TYPES[v_type]
    attend = attend_word(rows, key_dim, key_size, value_dim, value_cell, *kinds, capped)
    prepare, transform = prepare_word(rows, value_dim), hadamard_of(k_type, key_dim, key_dim)
    queries = 4 * rows * key_dim
    weights_at = 2 * queries
    spans_at = weights_at + weights_bytes(rows)
    taken = spans_at + 64 * rows

    @inline
    def take_row(q: int, scale: float, place: int) -> None:
        for i in range(0, 4 * key_dim, 64):
            store(place + i, load(f32x16, q + i) * splat(f32x16, float32(scale * LOG2_E)))
        transform(place)

    @inline
    def take(
        scratch: int,
        q: int,
        q_sink: int,
        oldest: int,
        newest: int,
        first: int,
        count: int,
        head: int,
        heads: int,
        scale: float,
        sinks: int,
    ) -> None:
        for row in range(rows):
            number = min(first + row, count * group - 1)  # behind the last token, the last row is computed again
            token = number // group
            source, place = 4 * key_dim * (heads * token + head * group + number % group), scratch + 4 * key_dim * row
            store(scratch + spans_at + 8 * row, load(int32, oldest + 4 * token))
            store(scratch + spans_at + 8 * row + 4, load(int32, newest + 4 * token))
            take_row(q + source, scale, place)
            if sinks:
                take_row(q_sink + source, scale, place + queries)

    @inline
    def look(
        scratch: int,
        k: int,
        v: int,
        cells: int,
        cap: float,
        table: int,
        first: int,
        end: int,
        beyond: int,
        sinks: int,
        state: int,
    ) -> None:
        prepare(state)
        weights, spans = scratch + weights_at, scratch + spans_at
        attend(scratch, scratch + queries, k, v, cells, spans, cap, table, first, end, beyond, sinks, weights, state)

    return take, look, taken


def deliver_word(
    heads: int, value_dim: int, value_size: int, value_cell: int, tile: int, passes: int, v_type: str
) -> Any:
    """The word deliver(rows, attn_sinks, y, q_out, n, token, first): the sums of neighbouring heads of a token, from
    one on, each over its denominator, where they belong. They are quantized together, four groups of 32 at a time."""
    transform, quantize_groups = hadamard_of(v_type, value_dim, value_cell), groups_word(tile, passes)
    sink = sink_word(value_dim)
    stride, groups, whole = row_bytes(value_dim), value_size // 32, value_size // 16 * 16

    @inline
    def deliver_head(row: int, y: int) -> None:
        transform(row + SUMS)
        inverse = float32(1.0) / total(load(f32x16, row + DENOMINATOR))
        factor = splat(f32x16, inverse)
        for i in range(0, 4 * whole, 64):
            store(y + i, load(f32x16, row + SUMS + i) * factor)
        for i in range(4 * whole, 4 * value_size, 4):
            store(y + i, load(float32, row + SUMS + i) * inverse)

    @inline
    def deliver(rows: int, attn_sinks: int, y: int, q_out: int, n: int, token: int, first: int) -> None:
        for head in range(heads):
            if attn_sinks:
                sink(rows + stride * head, load(float32, attn_sinks + 4 * (first + head)))
            deliver_head(rows + stride * head, y + 4 * (n * token + value_size * (first + head)))
        if q_out:
            quantize_groups(y + 4 * n * token, q_out, token, groups * first, groups * (first + heads), n)

    return deliver


def segment_word(
    group: int, key_dim: int, key_size: int, value_dim: int, value_size: int, value_cell: int, tile: int, passes: int,
    rows: int, k_type: str, v_type: str, capped: int,
) -> Any:  # fmt: skip
    """The word look(...): a segment's work items mine .. others, pieces of tiles of so many rows, each a chunk of cells
    for one tile, or whole tiles unless the work is `shared`. Addresses of queries and spans are of its first token;
    v_cache is k_cache where values are dimensions of keys."""
    take, look, taken = tile_words(group, key_dim, key_size, value_dim, value_cell, rows, k_type, v_type, capped)
    together = group if rows % group == 0 else 1  # neighbouring rows that are heads of one token
    deliver = deliver_word(together, value_dim, value_size, value_cell, tile, passes, v_type)
    prepare, merge, stride = prepare_word(rows, value_dim), merge_word(value_dim), row_bytes(value_dim)
    k_block, v_block = CELL_TYPES[k_type].block_bytes(key_dim), CELL_TYPES[v_type].block_bytes(value_cell)

    @inline
    def join(state: int, piece: int) -> None:
        for row in range(0, rows * stride, stride):
            merge(state + row, piece + row)

    @inline
    def look_from(
        segment, q, q_sink, k_cache, v_cache, capacity, cell_positions, oldest, newest, sinks, kv_heads, scale, cap,
        attn_sinks, chunk, partial, y, q_out, stop, shared, mine, others, token, scratch
    ):  # fmt: skip
        count, table, end = load(int64, segment), load(int64, segment + 8), load(int64, segment + 16)
        heads, pieces, taken_tile = kv_heads * group, chunks_of(segment, chunk) if shared else 1, -1
        in_all, first_block = capacity // BLOCK, load(int32, table)
        for item in range(mine, others):
            if load(int64, stop):
                return
            pair = item // pieces
            first, head = pair // kv_heads * rows, pair % kv_heads
            k, v = k_cache + k_block * in_all * head, v_cache + v_block * in_all * head
            if pair != taken_tile:
                take(scratch, q, q_sink, oldest, newest, first, count, head, heads, scale, sinks)
                taken_tile = pair
            state, piece = scratch + taken, scratch + taken + rows * stride
            begin, last = 0, end
            if shared:
                begin = item % pieces * chunk
                last, piece = min(begin + chunk, end), partial + rows * stride * item
            else:
                prepare(state)
            for start in range(begin, last, chunk):
                until = min(start + chunk, last)
                beyond = k + k_block * int64(load(int32, table + 4 * until) if until < end else first_block + in_all)
                look(scratch, k, v, cell_positions, cap, table, start, until, beyond, sinks, piece)
                if not shared:
                    join(state, piece)
            if not shared:
                for row in range(first, min(first + rows, count * group), together):
                    here, at = state + stride * (row - first), token + row // group
                    deliver(here, attn_sinks, y, q_out, heads * value_size, at, head * group + row % group)

    return look_from


def attention(
    group: int, key_dim: int, key_size: int, value_dim: int, value_size: int, value_cell: int, tile: int, passes: int,
    rows: int, single: int, k_type: str, v_type: str, capped: int,
) -> Body:  # fmt: skip
    """The kernel for tiles of so many rows, and in segments of a single token of so many."""
    shape = group, key_dim, key_size, value_dim, value_size, value_cell, tile, passes
    look_many = look = segment_word(*shape, rows, k_type, v_type, capped)
    if single != rows:
        look_single = segment_word(*shape, single, k_type, v_type, capped)

        @inline
        def look(segment, *more):
            if load(int64, segment) == 1:
                look_single(segment, *more)
            else:
                look_many(segment, *more)

    rows_of, tiles_of, are_shared = tiles_words(group, rows, single)
    stride = row_bytes(value_dim)

    def body(
        tokens, q, q_sink, k_cache, v_cache, capacity, cell_positions, oldest, newest, segments, sink_blocks,
        kv_heads, scale, cap, attn_sinks, chunk, partial, y, q_out, stop, part, parts, scratch
    ):  # fmt: skip
        behind, query_bytes, items = segments_end(segments), 4 * key_dim * kv_heads * group, 0
        shared = are_shared(segments, kv_heads, chunk)
        for segment in range(segments + 8, behind, SEGMENT_BYTES):
            items += tiles_of(segment, kv_heads) * (chunks_of(segment, chunk) if shared else 1)
        mine, others = items * part // parts, items * (part + 1) // parts
        token, done, states = 0, 0, partial  # where this segment begins
        for segment in range(segments + 8, behind, SEGMENT_BYTES):
            own = tiles_of(segment, kv_heads) * (chunks_of(segment, chunk) if shared else 1)
            first, last = max(mine - done, 0), min(others - done, own)
            queries, sink_queries = q + query_bytes * token, q_sink + query_bytes * token
            old, new = oldest + 4 * token, newest + 4 * token
            look(
                segment, queries, sink_queries, k_cache, v_cache, capacity, cell_positions, old, new, sink_blocks,
                kv_heads, scale, cap, attn_sinks, chunk, states, y, q_out, stop, shared, first, last, token, scratch
            )  # fmt: skip
            token, done, states = token + load(int64, segment), done + own, states + rows_of(segment) * stride * own

    return body


def combine(
    group: int, value_dim: int, value_size: int, value_cell: int, tile: int, passes: int, rows: int, single: int,
    v_type: str,
) -> Body:  # fmt: skip
    """The kernel that joins the states of chunks that threads shared; the first is where the whole is gathered."""
    merge = merge_word(value_dim)
    deliver = deliver_word(1, value_dim, value_size, value_cell, tile, passes, v_type)
    rows_of, tiles_of, are_shared = tiles_words(group, rows, single)
    stride = row_bytes(value_dim)

    def body(tokens, segments, kv_heads, attn_sinks, chunk, partial, y, q_out, part, parts, scratch):
        if not are_shared(segments, kv_heads, chunk):
            return
        heads = kv_heads * group
        items = load(int64, tokens) * heads
        mine, others = items * part // parts, items * (part + 1) // parts
        token, states = 0, partial  # where this segment begins
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            count, chunks, state = load(int64, segment), chunks_of(segment, chunk), rows_of(segment) * stride
            for item in range(max(mine, token * heads), min(others, (token + count) * heads)):
                at, which = item // heads, item % heads
                number = (at - token) * group + which % group
                pair, row = number // rows_of(segment) * kv_heads + which // group, number % rows_of(segment)
                whole = states + state * pair * chunks + stride * row
                for piece in range(1, chunks):
                    merge(whole, whole + state * piece)
                deliver(whole, attn_sinks, y, q_out, heads * value_size, at, which)
            token, states = token + count, states + state * tiles_of(segment, kv_heads) * chunks

    return body
