"""Paged attention for batches of any size.

A batch consists of segments: contiguous tokens of a sequence, which attend to that sequence only. The queries of a
segment, of all query heads that share a key head, are divided into tiles (`localinfer.kernels.attention.attend`), and
the pages of its cache into chunks. Each chunk gives a partial softmax state, and these are merged in order, so results
do not depend on the number of threads. With many tiles, each thread processes whole tiles. With few tiles, as when
decoding with a long context, threads process chunks and leave their states for `localinfer.kernels.attention.combine`
(split-K, as in Flash-Decoding; Dao et al., 2023).

The two words of a segment (`localinfer.kernels.segments`) are the address of its page table, int32, which maps logical
pages to pages, and the number of its pages.

Queries are q[token][head][key_dim], where `group` query heads share a key head; the caches are those of
`localinfer.kernels.attention.cache_types`, head after head. The results are y[token][head][value_size] and, unless
q_out is 0, the same quantized. Of the value_dim values in the cache, the first value_size are returned. If
value_entry_dim > value_dim, values are the last value_dim dimensions of keys of value_entry_dim dimensions. A token
attends to positions from its `oldest` to its `newest`, int32 each; of the first `sink_pages` pages, to all up to its
newest, with the queries at `q_sink`. Scores are multiplied by `scale` and, if `capped`, soft-capped at `cap`.
`attn_sinks`, unless 0, has a learned score per head that takes part in the softmax and has no value (gpt-oss; OpenAI,
2025).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from numba import float32, int32, int64

from localinfer.kernels.attention.attend import CacheHead, PageRange, TileScratch, make_attend_chunk
from localinfer.kernels.attention.cache_types import CACHE_TYPES
from localinfer.kernels.attention.hadamard import make_hadamard
from localinfer.kernels.attention.online_softmax import make_initialize, merge
from localinfer.kernels.attention.output import OutputHeads, make_store_output
from localinfer.kernels.attention.query_tiles import Tiling, are_chunks_shared, count_chunks, rows_of, tiles_of
from localinfer.kernels.attention.shape import AttentionShape
from localinfer.kernels.exponentials import LOG2_E
from localinfer.kernels.layout import PAGE_SIZE, hadamard_block, row_state_bytes
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, inline, load, splat, store

Body = Callable[..., None]


class SegmentWork(NamedTuple):
    """The work items of a segment that one thread processes. A work item is one chunk of one tile if threads share the
    chunks, else a whole tile."""

    segment: int  # address of the segment
    token: int  # number of the segment's first token in the batch
    first_item: int
    end_item: int  # one past the last item
    shared: bool  # whether threads share the chunks of a tile
    partial: int  # address of the segment's partial states, one for each item


def make_load_queries(shape: AttentionShape) -> Any:
    """Make load_queries(args, work, first, head, scratch): load the queries of a tile and their spans into scratch,
    from row `first` of the segment on, for key head `head`."""
    key_dim, rows = shape.key_dim, shape.rows
    transform, tile = make_hadamard(hadamard_block(shape.k_type, key_dim)), TileScratch(rows, key_dim)
    queries_bytes, spans_at = tile.queries_bytes, tile.spans_at

    @inline
    def load_query(q: int, scale: float, out: int) -> None:
        for i in range(0, 4 * key_dim, 64):
            store(out + i, load(f32x16, q + i) * splat(f32x16, float32(scale * LOG2_E)))
        transform(out, key_dim)

    @inline
    def load_queries(args: Any, work: SegmentWork, first: int, head: int, scratch: int) -> None:
        group = args.group
        last = load(int64, work.segment) * group - 1
        for row in range(rows):
            number = min(first + row, last)  # after the last token, the last row is repeated
            token, span, out = work.token + number // group, scratch + spans_at + 8 * row, scratch + 4 * key_dim * row
            query = 4 * key_dim * ((args.kv_heads * token + head) * group + number % group)
            store(span, load(int32, args.oldest + 4 * token))
            store(span + 4, load(int32, args.newest + 4 * token))
            load_query(args.q + query, args.scale, out)
            if args.sink_pages:
                load_query(args.q_sink + query, args.scale, out + queries_bytes)

    return load_queries


def make_select_head(shape: AttentionShape) -> Any:
    """Make select_head(args, segment, head): return a key head of the cache, with the segment's page table."""
    k_page_bytes = CACHE_TYPES[shape.k_type].block_bytes(shape.key_dim)
    v_page_bytes = CACHE_TYPES[shape.v_type].block_bytes(shape.value_entry_dim)

    @inline
    def select_head(args: Any, segment: int, head: int) -> CacheHead:
        first_page = args.capacity // PAGE_SIZE * head
        k, v = args.k_cache + k_page_bytes * first_page, args.v_cache + v_page_bytes * first_page
        return CacheHead(k, v, args.entry_positions, load(int64, segment + 8), args.sink_pages, args.cap)

    return select_head


def make_next_keys(shape: AttentionShape) -> Any:
    """Make next_keys(args, segment, cache, page): return the address of the keys of a logical page, or, after the last
    page of the segment, of the first page of the next key head."""
    page_bytes = CACHE_TYPES[shape.k_type].block_bytes(shape.key_dim)

    @inline
    def next_keys(args: Any, segment: int, cache: CacheHead, page: int) -> int:
        table = cache.page_table
        return cache.k + page_bytes * int64(
            load(int32, table + 4 * page)
            if page < load(int64, segment + 16)
            else load(int32, table) + args.capacity // PAGE_SIZE
        )

    return next_keys


def make_store_tile(shape: AttentionShape) -> Any:
    """Make store_tile(args, work, first, head, state): store the output of a tile whose first row is row `first` of the
    segment."""
    rows, value_dim, stride = shape.rows, shape.value_dim, row_state_bytes(shape.value_dim)
    store_output = make_store_output(hadamard_block(shape.v_type, shape.value_entry_dim), shape.tile, shape.passes)

    @inline
    def store_tile(args: Any, work: SegmentWork, first: int, head: int, state: int) -> None:
        group = args.group
        heads, end = OutputHeads(args.kv_heads * group, value_dim, args.value_size), load(int64, work.segment) * group
        together = group if rows % group == 0 else 1  # adjacent rows that are heads of one token
        for row in range(first, min(first + rows, end), together):
            number = head * group + row % group
            token, row_state = work.token + row // group, state + stride * (row - first)
            store_output(args, heads, row_state, token, number, number + together)

    return store_tile


def make_attend_segment(shape: AttentionShape) -> Any:
    """Make attend_segment(args, work, scratch): process the work items of a segment in tiles of `shape.rows` rows."""
    rows, value_dim, stride = shape.rows, shape.value_dim, row_state_bytes(shape.value_dim)
    tile_bytes = rows * stride
    load_queries, select_head, next_keys = make_load_queries(shape), make_select_head(shape), make_next_keys(shape)
    attend, initialize = make_attend_chunk(shape), make_initialize(rows, shape.value_dim)
    store_tile = make_store_tile(shape)
    scratch_bytes = TileScratch(rows, shape.key_dim).nbytes

    @inline
    def attend_segment(args: Any, work: SegmentWork, scratch: int) -> None:
        n_pages, loaded_tile = load(int64, work.segment + 16), -1
        chunks = count_chunks(work.segment, args.chunk) if work.shared else 1
        for item in range(work.first_item, work.end_item):
            if load(int64, args.stop):
                return
            tile = item // chunks
            first, head = tile // args.kv_heads * rows, tile % args.kv_heads
            cache = select_head(args, work.segment, head)
            if tile != loaded_tile:
                load_queries(args, work, first, head, scratch)
                loaded_tile = tile
            state, chunk_state = scratch + scratch_bytes, scratch + scratch_bytes + tile_bytes
            begin, end = 0, n_pages
            if work.shared:
                begin = item % chunks * args.chunk
                end, chunk_state = min(begin + args.chunk, n_pages), work.partial + tile_bytes * item
            else:
                initialize(state)
            for page in range(begin, end, args.chunk):
                until = min(page + args.chunk, end)
                pages = PageRange(page, until, next_keys(args, work.segment, cache, until))
                initialize(chunk_state)
                attend(cache, pages, scratch, chunk_state)
                if not work.shared:
                    for row in range(0, tile_bytes, stride):
                        merge(state + row, chunk_state + row, value_dim)
            if not work.shared:
                store_tile(args, work, first, head, state)

    return attend_segment


def attention(**constants: Any) -> Body:
    """Make the attention kernel for the constants of an `AttentionShape`, with tiles of `rows` rows, or `single` rows
    in segments of one token."""
    shape = AttentionShape(**constants)
    attend_segment = attend_tokens = make_attend_segment(shape)
    if shape.single != shape.rows:
        attend_token = make_attend_segment(replace(shape, rows=shape.single))

        @inline
        def attend_segment(args: Any, work: SegmentWork, scratch: int) -> None:
            if load(int64, work.segment) == 1:
                attend_token(args, work, scratch)
            else:
                attend_tokens(args, work, scratch)

    rows, single, stride = shape.rows, shape.single, row_state_bytes(shape.value_dim)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        segments, chunk, tiling = args.segments, args.chunk, Tiling(args.group, args.kv_heads, rows, single)
        end_segment, items = segments_end(segments), 0
        shared = are_chunks_shared(tiling, segments, chunk)
        for segment in range(segments + 8, end_segment, SEGMENT_BYTES):
            items += tiles_of(tiling, segment) * (count_chunks(segment, chunk) if shared else 1)
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        token, done, partial = 0, 0, args.partial  # the start of this segment
        for segment in range(segments + 8, end_segment, SEGMENT_BYTES):
            segment_items = tiles_of(tiling, segment) * (count_chunks(segment, chunk) if shared else 1)
            first, end = max(first_item - done, 0), min(end_item - done, segment_items)
            attend_segment(args, SegmentWork(segment, token, first, end, shared, partial), scratch)
            token, done, partial = (
                token + load(int64, segment),
                done + segment_items,
                partial + rows_of(tiling, segment) * stride * segment_items,
            )

    return body
