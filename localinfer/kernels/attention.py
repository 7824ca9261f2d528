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
from dataclasses import replace
from typing import Any, NamedTuple

from numba import float32, int32, int64

from localinfer.kernels.attend import CacheHead, PageRange, TileScratch, make_attend_chunk
from localinfer.kernels.attention_shape import AttentionShape, OutputShape
from localinfer.kernels.cache_types import CACHE_TYPES
from localinfer.kernels.hadamard import make_hadamard, make_no_transform, transform_size
from localinfer.kernels.layout import MIN_TILES_UNSPLIT, MIN_WHOLE_TILES, PAGE_SIZE, row_state_bytes
from localinfer.kernels.online_softmax import DENOMINATOR, LOG2_E, SUMS, make_add_sink, make_initialize, make_merge
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, inline, load, reduce_sum, splat, store
from quant.matmul.activations import make_quantize_groups

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


@inline
def count_chunks(segment: int, chunk: int) -> int:
    """Return the number of chunks that a segment's pages are divided into."""
    return (load(int64, segment + 16) + chunk - 1) // chunk


def make_tiling(shape: OutputShape) -> tuple[Any, Any, Any]:
    """Make the functions that divide segments into tiles of `shape.rows` rows, or of `shape.single` rows in segments of
    one token.

    rows_of(segment) and tiles_of(segment, kv_heads) return the rows per tile and the number of tiles.
    are_chunks_shared(segments, kv_heads, chunk) returns whether so few tiles exist that threads share their chunks.
    """
    group, rows, single = shape.group, shape.rows, shape.single

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


def make_load_queries(shape: AttentionShape) -> Any:
    """Make load_queries(args, work, first, head, scratch): load the queries of a tile and their spans into scratch,
    from row `first` of the segment on, for key head `head`."""
    group, key_dim, rows = shape.group, shape.key_dim, shape.rows
    transform, tile = hadamard_for(shape.k_type, key_dim, key_dim), TileScratch(rows, key_dim)
    queries_bytes, spans_at = tile.queries_bytes, tile.spans_at

    @inline
    def load_query(q: int, scale: float, out: int) -> None:
        for i in range(0, 4 * key_dim, 64):
            store(out + i, load(f32x16, q + i) * splat(f32x16, float32(scale * LOG2_E)))
        transform(out)

    @inline
    def load_queries(args: Any, work: SegmentWork, first: int, head: int, scratch: int) -> None:
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


def make_store_output(shape: OutputShape, heads: int) -> Any:
    """Make store_output(args, state, token, head): divide the sums of `heads` adjacent query heads of a token by their
    denominators, store them in y, and quantize them. `state` is the address of the first head's state."""
    group, value_dim, value_size, v_type = shape.group, shape.value_dim, shape.value_size, shape.v_type
    transform = hadamard_for(v_type, value_dim, shape.value_entry_dim)
    sink, quantize_groups = make_add_sink(value_dim), make_quantize_groups(shape.tile, shape.passes)
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
    def store_output(args: Any, state: int, token: int, head: int) -> None:
        n = args.kv_heads * group * value_size
        for i in range(heads):
            if args.attn_sinks:
                sink(state + stride * i, load(float32, args.attn_sinks + 4 * (head + i)))
            store_head(state + stride * i, args.y + 4 * (n * token + value_size * (head + i)))
        if args.q_out:
            quantize_groups(args.y + 4 * n * token, args.q_out, token, groups * head, groups * (head + heads), n)

    return store_output


def make_tile_states(shape: AttentionShape) -> tuple[Any, Any]:
    """Make merge_tile(state, later): merge the states of a tile with those of later pages; and store_tile(args, work,
    first, head, state): store the output of a tile whose first row is row `first` of the segment."""
    group, rows, stride, merge = shape.group, shape.rows, row_state_bytes(shape.value_dim), make_merge(shape.value_dim)
    heads_per_row = group if rows % group == 0 else 1  # adjacent rows that are heads of one token
    store_output = make_store_output(shape, heads_per_row)

    @inline
    def merge_tile(state: int, later: int) -> None:
        for row in range(0, rows * stride, stride):
            merge(state + row, later + row)

    @inline
    def store_tile(args: Any, work: SegmentWork, first: int, head: int, state: int) -> None:
        for row in range(first, min(first + rows, load(int64, work.segment) * group), heads_per_row):
            store_output(args, state + stride * (row - first), work.token + row // group, head * group + row % group)

    return merge_tile, store_tile


def make_attend_segment(shape: AttentionShape) -> Any:
    """Make attend_segment(args, work, scratch): process the work items of a segment in tiles of `shape.rows` rows."""
    rows, tile_bytes = shape.rows, shape.rows * row_state_bytes(shape.value_dim)
    load_queries, select_head, next_keys = make_load_queries(shape), make_select_head(shape), make_next_keys(shape)
    attend, initialize = make_attend_chunk(shape), make_initialize(rows, shape.value_dim)
    merge_tile, store_tile = make_tile_states(shape)
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
                    merge_tile(state, chunk_state)
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

    rows_of, tiles_of, are_chunks_shared = make_tiling(shape)
    stride = row_state_bytes(shape.value_dim)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        segments, kv_heads, chunk = args.segments, args.kv_heads, args.chunk
        end_segment, items = segments_end(segments), 0
        shared = are_chunks_shared(segments, kv_heads, chunk)
        for segment in range(segments + 8, end_segment, SEGMENT_BYTES):
            items += tiles_of(segment, kv_heads) * (count_chunks(segment, chunk) if shared else 1)
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        token, done, partial = 0, 0, args.partial  # the start of this segment
        for segment in range(segments + 8, end_segment, SEGMENT_BYTES):
            segment_items = tiles_of(segment, kv_heads) * (count_chunks(segment, chunk) if shared else 1)
            first, end = max(first_item - done, 0), min(end_item - done, segment_items)
            attend_segment(args, SegmentWork(segment, token, first, end, shared, partial), scratch)
            token, done, partial = (
                token + load(int64, segment),
                done + segment_items,
                partial + rows_of(segment) * stride * segment_items,
            )

    return body


def combine(**constants: Any) -> Body:
    """Make the kernel that merges the partial states of shared chunks into that of the first chunk and stores the
    output. The constants are those of `OutputShape`."""
    shape = OutputShape(**constants)
    group, stride = shape.group, row_state_bytes(shape.value_dim)
    merge, store_output = make_merge(shape.value_dim), make_store_output(shape, heads=1)
    rows_of, tiles_of, are_chunks_shared = make_tiling(shape)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        segments, kv_heads = args.segments, args.kv_heads
        if not are_chunks_shared(segments, kv_heads, args.chunk):
            return
        heads = kv_heads * group
        items = load(int64, args.tokens) * heads
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        first, partial = 0, args.partial  # the first token and the partial states of this segment
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            count, chunks, rows = load(int64, segment), count_chunks(segment, args.chunk), rows_of(segment)
            for item in range(max(first_item, first * heads), min(end_item, (first + count) * heads)):
                token, head = item // heads, item % heads
                query = (token - first) * group + head % group
                tile = query // rows * kv_heads + head // group
                state = partial + stride * (rows * tile * chunks + query % rows)
                for chunk in range(1, chunks):
                    merge(state, state + stride * rows * chunk)
                store_output(args, state, token, head)
            first, partial = first + count, partial + stride * rows * tiles_of(segment, kv_heads) * chunks

    return body
