"""Paged attention for batches of any size, and the kernel that merges partial results.

A batch consists of segments: contiguous tokens of a sequence, which attend to that sequence only. The queries of a
segment, of all query heads that share a key head, are divided into tiles (`localinfer.kernels.attend`), and the pages
of its cache into chunks. Each chunk gives a partial softmax state, and these are merged in order, so results do not
depend on the number of threads. With many tiles, each thread processes whole tiles. With few tiles, as when decoding
with a long context, threads process chunks and leave their states for `combine` (split-K, as in Flash-Decoding; Dao et
al., 2023).

The two words of a segment (`localinfer.kernels.segments`) are the address of its page table, int32, which maps logical
pages to pages, and the number of its pages.

Queries are q[token][head][key_dim]; the caches are those of `localinfer.kernels.cache_types`, head after head. The
results are y[token][head][value_size] and, unless q_out is 0, the same quantized. Of the value_dim values in the cache,
the first value_size are returned. If value_entry_dim > value_dim, values are the last value_dim dimensions of keys of
value_entry_dim dimensions. A token attends to positions from its `oldest` to its `newest`, int32 each; of the first
`sink_pages` pages, to all up to its newest, with the queries at `q_sink`. Scores are multiplied by `scale` and, if
`capped`, soft-capped at `cap`. `attn_sinks`, unless 0, has a learned score per head that takes part in the softmax and
has no value (gpt-oss; OpenAI, 2025).
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.kernels.attend import make_attend_chunk
from localinfer.kernels.cache_types import CACHE_TYPES
from localinfer.kernels.hadamard import make_hadamard, make_no_transform, transform_size
from localinfer.kernels.layout import MIN_TILES_UNSPLIT, MIN_WHOLE_TILES, PAGE_SIZE, page_weights_bytes, row_state_bytes
from localinfer.kernels.online_softmax import DENOMINATOR, LOG2_E, SUMS, make_add_sink, make_initialize, make_merge
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, inline, load, reduce_sum, splat, store
from quant.matmul.activations import make_quantize_groups

Body = Callable[..., None]


@inline
def count_chunks(segment: int, chunk: int) -> int:
    """Return the number of chunks that a segment's pages are divided into."""
    return (load(int64, segment + 16) + chunk - 1) // chunk


def make_tiling(group: int, rows: int, single: int) -> tuple[Any, Any, Any]:
    """Make the functions that divide segments into tiles of `rows` rows, or of `single` rows in segments of one token.

    rows_of(segment) and tiles_of(segment, kv_heads) return the rows per tile and the number of tiles.
    are_chunks_shared(segments, kv_heads, chunk) returns whether so few tiles exist that threads divide their chunks.
    """

    @inline
    def rows_of(segment: int) -> int:
        return single if load(int64, segment) == 1 else rows

    @inline
    def tiles_of(segment: int, kv_heads: int) -> int:
        return (load(int64, segment) * group + rows_of(segment) - 1) // rows_of(segment) * kv_heads

    @inline
    def are_chunks_shared(segments: int, kv_heads: int, chunk: int) -> int:
        tiles, chunks = 0, 0
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            tiles, chunks = tiles + tiles_of(segment, kv_heads), max(chunks, count_chunks(segment, chunk))
        return tiles < (MIN_TILES_UNSPLIT if chunks > 1 else MIN_WHOLE_TILES)

    return rows_of, tiles_of, are_chunks_shared


def hadamard_for(kind: str, dim: int, whole: int) -> Any:
    """Return the inlined function that transforms `dim` dimensions of a head if the cache type is quantized, in parts
    that also divide `whole`: see `localinfer.kernels.hadamard`."""
    return make_hadamard(dim, transform_size(whole)) if CACHE_TYPES[kind].scaled and dim else make_no_transform()


def make_tile_functions(
    group: int, key_dim: int, key_size: int, value_dim: int, value_entry_dim: int, rows: int, k_type: str, v_type: str,
    capped: int,
) -> tuple[Any, Any, int]:  # fmt: skip
    """Make the functions that process a tile in a thread's scratch memory; return them and the scratch bytes used.

    load_queries(scratch, q, q_sink, oldest, newest, first, count, head, heads, scale, sinks): load the queries from row
    `first` on.
    attend_pages(scratch, k, v, positions, cap, table, first, end, last_prefetch, sinks, state): attend to the pages
    first .. end - 1.
    """
    kinds = CACHE_TYPES[k_type], CACHE_TYPES[v_type]
    attend = make_attend_chunk(rows, key_dim, key_size, value_dim, value_entry_dim, *kinds, capped)
    prepare, transform = make_initialize(rows, value_dim), hadamard_for(k_type, key_dim, key_dim)
    queries = 4 * rows * key_dim
    weights_at = 2 * queries
    spans_at = weights_at + page_weights_bytes(rows)
    scratch_bytes = spans_at + 64 * rows

    @inline
    def load_query(q: int, scale: float, place: int) -> None:
        for i in range(0, 4 * key_dim, 64):
            store(place + i, load(f32x16, q + i) * splat(f32x16, float32(scale * LOG2_E)))
        transform(place)

    @inline
    def load_queries(
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
            number = min(first + row, count * group - 1)  # after the last token, the last row is repeated
            token = number // group
            source, place = 4 * key_dim * (heads * token + head * group + number % group), scratch + 4 * key_dim * row
            store(scratch + spans_at + 8 * row, load(int32, oldest + 4 * token))
            store(scratch + spans_at + 8 * row + 4, load(int32, newest + 4 * token))
            load_query(q + source, scale, place)
            if sinks:
                load_query(q_sink + source, scale, place + queries)

    @inline
    def attend_pages(
        scratch: int,
        k: int,
        v: int,
        positions: int,
        cap: float,
        table: int,
        first: int,
        end: int,
        last_prefetch: int,
        sinks: int,
        state: int,
    ) -> None:
        prepare(state)
        weights, spans = scratch + weights_at, scratch + spans_at
        attend(
            scratch,
            scratch + queries,
            k,
            v,
            positions,
            spans,
            cap,
            table,
            first,
            end,
            last_prefetch,
            sinks,
            weights,
            state,
        )

    return load_queries, attend_pages, scratch_bytes


def make_store_output(
    heads: int, value_dim: int, value_size: int, value_entry_dim: int, tile: int, passes: int, v_type: str
) -> Any:
    """Make store_output(rows, attn_sinks, y, q_out, n, token, first): divide the sums of `heads` adjacent heads of a
    token by their denominators, store them in y, and quantize them."""
    transform, quantize_groups = hadamard_for(v_type, value_dim, value_entry_dim), make_quantize_groups(tile, passes)
    sink = make_add_sink(value_dim)
    stride, groups, whole = row_state_bytes(value_dim), value_size // 32, value_size // 16 * 16

    @inline
    def store_head(row: int, y: int) -> None:
        transform(row + SUMS)
        inverse = float32(1.0) / reduce_sum(load(f32x16, row + DENOMINATOR))
        factor = splat(f32x16, inverse)
        for i in range(0, 4 * whole, 64):
            store(y + i, load(f32x16, row + SUMS + i) * factor)
        for i in range(4 * whole, 4 * value_size, 4):
            store(y + i, load(float32, row + SUMS + i) * inverse)

    @inline
    def store_output(rows: int, attn_sinks: int, y: int, q_out: int, n: int, token: int, first: int) -> None:
        for head in range(heads):
            if attn_sinks:
                sink(rows + stride * head, load(float32, attn_sinks + 4 * (first + head)))
            store_head(rows + stride * head, y + 4 * (n * token + value_size * (first + head)))
        if q_out:
            quantize_groups(y + 4 * n * token, q_out, token, groups * first, groups * (first + heads), n)

    return store_output


def make_attend_segment(
    group: int, key_dim: int, key_size: int, value_dim: int, value_size: int, value_entry_dim: int, tile: int,
    passes: int,
    rows: int, k_type: str, v_type: str, capped: int,
) -> Any:  # fmt: skip
    """Make the function that processes the work items first_item .. end_item - 1 of a segment.

    A work item is one chunk of one tile if the work is `shared` among threads, else a whole tile. Addresses of queries
    and spans are those of the segment's first token; v_cache is k_cache if values are dimensions of keys.
    """
    load_queries, attend_pages, scratch_bytes = make_tile_functions(
        group, key_dim, key_size, value_dim, value_entry_dim, rows, k_type, v_type, capped
    )
    heads_per_row = group if rows % group == 0 else 1  # adjacent rows that are heads of one token
    store_output = make_store_output(heads_per_row, value_dim, value_size, value_entry_dim, tile, passes, v_type)
    prepare, merge, stride = make_initialize(rows, value_dim), make_merge(value_dim), row_state_bytes(value_dim)
    k_page_bytes, v_page_bytes = (
        CACHE_TYPES[k_type].block_bytes(key_dim),
        CACHE_TYPES[v_type].block_bytes(value_entry_dim),
    )

    @inline
    def merge_tile(state: int, chunk_state: int) -> None:
        for row in range(0, rows * stride, stride):
            merge(state + row, chunk_state + row)

    @inline
    def attend_segment(
        segment, q, q_sink, k_cache, v_cache, capacity, entry_positions, oldest, newest, sinks, kv_heads, scale, cap,
        attn_sinks, chunk, partial, y, q_out, stop, shared, first_item, end_item, token, scratch
    ):  # fmt: skip
        count, table, end = load(int64, segment), load(int64, segment + 8), load(int64, segment + 16)
        heads, pieces, loaded_tile = kv_heads * group, count_chunks(segment, chunk) if shared else 1, -1
        total_pages, first_block = capacity // PAGE_SIZE, load(int32, table)
        for item in range(first_item, end_item):
            if load(int64, stop):
                return
            pair = item // pieces
            first, head = pair // kv_heads * rows, pair % kv_heads
            k, v = k_cache + k_page_bytes * total_pages * head, v_cache + v_page_bytes * total_pages * head
            if pair != loaded_tile:
                load_queries(scratch, q, q_sink, oldest, newest, first, count, head, heads, scale, sinks)
                loaded_tile = pair
            state, chunk_state = scratch + scratch_bytes, scratch + scratch_bytes + rows * stride
            begin, last = 0, end
            if shared:
                begin = item % pieces * chunk
                last, chunk_state = min(begin + chunk, end), partial + rows * stride * item
            else:
                prepare(state)
            for start in range(begin, last, chunk):
                until = min(start + chunk, last)
                last_prefetch = k + k_page_bytes * int64(
                    load(int32, table + 4 * until) if until < end else first_block + total_pages
                )
                attend_pages(
                    scratch, k, v, entry_positions, cap, table, start, until, last_prefetch, sinks, chunk_state
                )
                if not shared:
                    merge_tile(state, chunk_state)
            if not shared:
                for row in range(first, min(first + rows, count * group), heads_per_row):
                    here, at = state + stride * (row - first), token + row // group
                    store_output(here, attn_sinks, y, q_out, heads * value_size, at, head * group + row % group)

    return attend_segment


def attention(
    group: int, key_dim: int, key_size: int, value_dim: int, value_size: int, value_entry_dim: int, tile: int,
    passes: int,
    rows: int, single: int, k_type: str, v_type: str, capped: int,
) -> Body:  # fmt: skip
    """Make the attention kernel, with tiles of `rows` rows, or `single` rows in segments of one token."""
    shape = group, key_dim, key_size, value_dim, value_size, value_entry_dim, tile, passes
    attend_many = attend_pages = make_attend_segment(*shape, rows, k_type, v_type, capped)
    if single != rows:
        attend_single = make_attend_segment(*shape, single, k_type, v_type, capped)

        @inline
        def attend_pages(segment, *more):
            if load(int64, segment) == 1:
                attend_single(segment, *more)
            else:
                attend_many(segment, *more)

    rows_of, tiles_of, are_chunks_shared = make_tiling(group, rows, single)
    stride = row_state_bytes(value_dim)

    def body(
        tokens, q, q_sink, k_cache, v_cache, capacity, entry_positions, oldest, newest, segments, sink_pages,
        kv_heads, scale, cap, attn_sinks, chunk, partial, y, q_out, stop, chunk_index, n_chunks, scratch
    ):  # fmt: skip
        segments_stop, query_bytes, items = segments_end(segments), 4 * key_dim * kv_heads * group, 0
        shared = are_chunks_shared(segments, kv_heads, chunk)
        for segment in range(segments + 8, segments_stop, SEGMENT_BYTES):
            items += tiles_of(segment, kv_heads) * (count_chunks(segment, chunk) if shared else 1)
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        token, done, states = 0, 0, partial  # the start of this segment
        for segment in range(segments + 8, segments_stop, SEGMENT_BYTES):
            own = tiles_of(segment, kv_heads) * (count_chunks(segment, chunk) if shared else 1)
            first, last = max(first_item - done, 0), min(end_item - done, own)
            queries, sink_queries = q + query_bytes * token, q_sink + query_bytes * token
            old, new = oldest + 4 * token, newest + 4 * token
            attend_pages(
                segment, queries, sink_queries, k_cache, v_cache, capacity, entry_positions, old, new, sink_pages,
                kv_heads, scale, cap, attn_sinks, chunk, states, y, q_out, stop, shared, first, last, token, scratch
            )  # fmt: skip
            token, done, states = token + load(int64, segment), done + own, states + rows_of(segment) * stride * own

    return body


def combine(
    group: int, value_dim: int, value_size: int, value_entry_dim: int, tile: int, passes: int, rows: int, single: int,
    v_type: str,
) -> Body:  # fmt: skip
    """Make the kernel that merges the partial states of shared chunks into that of the first chunk and stores the
    output."""
    merge = make_merge(value_dim)
    store_output = make_store_output(1, value_dim, value_size, value_entry_dim, tile, passes, v_type)
    rows_of, tiles_of, are_chunks_shared = make_tiling(group, rows, single)
    stride = row_state_bytes(value_dim)

    def body(tokens, segments, kv_heads, attn_sinks, chunk, partial, y, q_out, chunk_index, n_chunks, scratch):
        if not are_chunks_shared(segments, kv_heads, chunk):
            return
        heads = kv_heads * group
        items = load(int64, tokens) * heads
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        token, states = 0, partial  # the start of this segment
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            count, chunks, state = load(int64, segment), count_chunks(segment, chunk), rows_of(segment) * stride
            for item in range(max(first_item, token * heads), min(end_item, (token + count) * heads)):
                at, which = item // heads, item % heads
                number = (at - token) * group + which % group
                pair, row = number // rows_of(segment) * kv_heads + which // group, number % rows_of(segment)
                whole = states + state * pair * chunks + stride * row
                for chunk_state in range(1, chunks):
                    merge(whole, whole + state * chunk_state)
                store_output(whole, attn_sinks, y, q_out, heads * value_size, at, which)
            token, states = token + count, states + state * tiles_of(segment, kv_heads) * chunks

    return body
