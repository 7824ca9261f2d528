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
`localinfer.kernels.attention.cache_types`, head after head. Keys have key_size values, padded to key_dim. The results
are y[token][head][value_size] and, unless q_out is 0, the same quantized. Of the value_dim values in the cache, the
first value_size are returned; if `values_in_keys`, values are the last value_dim dimensions of the keys. A token
attends to positions from its `oldest` to its `newest`, int32 each. In the first `sink_pages` pages it attends to all
positions up to its newest, with the queries at `q_sink`. In the pages from `compressed_page` on, unless that is 0, it
also attends to all positions up to its newest. Scores are multiplied by `scale` and, if `capped`, soft-capped at `cap`.
`attn_sinks`, unless 0, has a learned score per head that takes part in the softmax and has no value (gpt-oss; OpenAI,
2025). If `sloped`, `slopes` has a number per head, times which scores decrease with the distance of the key from
the query, whose position is in `query_positions`, int32 each (ALiBi; Press et al., 2021). If `biased`, `biases` has
what is added to base-2 scores at each distance, float32 [head][BIAS_ROW] (T5; Raffel et al., 2020).

If `selected`, `chosen` has a bit for each entry that a token attends to, int64 [token][choice][page], for `words`
pages. There are as many `choices` as key heads, or one for all of them.

The sizes of heads are arguments, so that models share kernels.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from numba import float32, int32, int64

from localinfer.kernels.attention.attend import CacheHead, PageRange, make_attend_chunk
from localinfer.kernels.attention.hadamard import make_hadamard
from localinfer.kernels.attention.online_softmax import make_initialize, merge
from localinfer.kernels.attention.output import OutputHeads, make_store_output
from localinfer.kernels.attention.query_tiles import Tiling, are_chunks_shared, count_chunks, rows_of, tiles_of
from localinfer.kernels.attention.shape import AttentionVariant, HeadSizes, make_head_sizes
from localinfer.kernels.attention.tile_scratch import TileQueries, TileScratch, make_tile_scratch
from localinfer.kernels.exponentials import LOG2_E
from localinfer.kernels.layout import PAGE_SIZE, row_state_bytes
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


def make_load_queries(variant: AttentionVariant) -> Any:
    """Make load_queries(args, work, first, head, tile): load the queries of a tile and their spans into its
    `TileScratch`, from row `first` of the segment on, for key head `head`."""
    rows, sloped, biased, selected = variant.rows, variant.sloped, variant.biased, variant.selected
    transform = make_hadamard(variant.keys)

    @inline
    def load_query(q: int, key_dim: int, scale: float, queries: TileQueries, row: int) -> None:
        out = queries.rows + 4 * key_dim * row
        for i in range(0, 4 * key_dim, 64):
            store(out + i, load(f32x16, q + i) * splat(f32x16, float32(scale * LOG2_E)))
        transform(out, key_dim, key_dim)
        for i in range(key_dim):
            store(queries.columns + 4 * (rows * i + row), load(float32, out + 4 * i))

    @inline
    def load_queries(args: Any, work: SegmentWork, first: int, head: int, tile: TileScratch) -> None:
        group, key_dim = args.group, args.key_dim
        last = load(int64, work.segment) * group - 1
        for row in range(rows):
            number = min(first + row, last)  # after the last token, the last row is repeated
            token, span = work.token + number // group, tile.spans + 8 * row
            query_head = head * group + number % group
            query = 4 * key_dim * (args.kv_heads * group * token + query_head)
            store(span, load(int32, args.oldest + 4 * token))
            store(span + 4, load(int32, args.newest + 4 * token))
            if sloped:
                store(tile.slopes + 4 * row, load(float32, args.slopes + 4 * query_head) * float32(LOG2_E))
            if selected:
                choice = args.choices * token + min(head, args.choices - 1)
                store(tile.chosen + 8 * row, int64(args.chosen + 8 * args.words * choice))
            if biased:
                store(tile.heads + 4 * row, int32(query_head))
            if sloped or biased:
                store(tile.positions + 4 * row, load(int32, args.query_positions + 4 * token))
            load_query(args.q + query, key_dim, args.scale, tile.queries, row)
            if args.sink_pages:
                load_query(args.q_sink + query, key_dim, args.scale, tile.sink_queries, row)

    return load_queries


@inline
def select_head(args: Any, sizes: HeadSizes, segment: int, head: int) -> CacheHead:
    """Return a key head of the cache, with the segment's page table."""
    first_page = args.capacity // PAGE_SIZE * head
    k, v = args.k_cache + sizes.k_page_bytes * first_page, args.v_cache + sizes.v_page_bytes * first_page
    table, sinks, compressed = load(int64, segment + 8), args.sink_pages, args.compressed_page
    return CacheHead(k, v, args.entry_positions, table, sinks, compressed, args.cap, args.biases)


@inline
def address_of_next_keys(args: Any, sizes: HeadSizes, segment: int, cache: CacheHead, page: int) -> int:
    """Return the address of the keys of a logical page, or, after the last page of the segment, of the first page of
    the next key head."""
    table = cache.page_table
    return cache.k + sizes.k_page_bytes * int64(
        load(int32, table + 4 * page)
        if page < load(int64, segment + 16)
        else load(int32, table) + args.capacity // PAGE_SIZE
    )


def make_store_tile(variant: AttentionVariant) -> Any:
    """Make store_tile(args, work, first, head, sizes, state): store the output of a tile whose first row is row `first`
    of the segment."""
    rows, values_in_keys = variant.rows, variant.values_in_keys
    store_output = make_store_output(variant.values, variant.tile, variant.passes)

    @inline
    def store_tile(args: Any, work: SegmentWork, first: int, head: int, sizes: HeadSizes, state: int) -> None:
        group, entry_dim = args.group, sizes.key_dim if values_in_keys else sizes.value_dim
        heads = OutputHeads(args.kv_heads * group, sizes.value_dim, args.value_size, entry_dim)
        end = load(int64, work.segment) * group
        together = group if rows % group == 0 else 1  # adjacent rows that are heads of one token
        for row in range(first, min(first + rows, end), together):
            number = head * group + row % group
            token, row_state = work.token + row // group, state + sizes.state_bytes * (row - first)
            store_output(args, heads, row_state, token, number, number + together)

    return store_tile


def make_attend_segment(variant: AttentionVariant) -> Any:
    """Make attend_segment(args, work, scratch): process the work items of a segment in tiles of `variant.rows` rows."""
    rows, head_sizes, tile_scratch = variant.rows, make_head_sizes(variant), make_tile_scratch(variant.rows)
    load_queries, store_tile = make_load_queries(variant), make_store_tile(variant)
    attend, initialize = make_attend_chunk(variant), make_initialize(rows)

    @inline
    def attend_segment(args: Any, work: SegmentWork, scratch: int) -> None:
        sizes, tile = head_sizes(args), tile_scratch(scratch, args.key_dim)
        n_pages, loaded_tile, tile_bytes = load(int64, work.segment + 16), -1, rows * sizes.state_bytes
        chunks = count_chunks(work.segment, args.chunk) if work.shared else 1
        for item in range(work.first_item, work.end_item):
            if load(int64, args.stop):
                return
            number = item // chunks
            first, head = number // args.kv_heads * rows, number % args.kv_heads
            cache = select_head(args, sizes, work.segment, head)
            if number != loaded_tile:
                load_queries(args, work, first, head, tile)
                loaded_tile = number
            state, chunk_state = tile.end, tile.end + tile_bytes
            begin, end = 0, n_pages
            if work.shared:
                begin = item % chunks * args.chunk
                end, chunk_state = min(begin + args.chunk, n_pages), work.partial + tile_bytes * item
            else:
                initialize(state, sizes.state_bytes)
            for page in range(begin, end, args.chunk):
                until = min(page + args.chunk, end)
                pages = PageRange(page, until, address_of_next_keys(args, sizes, work.segment, cache, until))
                initialize(chunk_state, sizes.state_bytes)
                attend(cache, pages, sizes, tile, chunk_state)
                if not work.shared:
                    for row in range(0, tile_bytes, sizes.state_bytes):
                        merge(state + row, chunk_state + row, sizes.value_dim)
            if not work.shared:
                store_tile(args, work, first, head, sizes, state)

    return attend_segment


def attention(**constants: Any) -> Body:
    """Make the attention kernel for the constants of an `AttentionVariant`."""
    variant = AttentionVariant(**constants)
    attend_segment = attend_tokens = make_attend_segment(variant)
    if variant.single != variant.rows:
        attend_token = make_attend_segment(replace(variant, rows=variant.single))

        @inline
        def attend_segment(args: Any, work: SegmentWork, scratch: int) -> None:
            if load(int64, work.segment) == 1:
                attend_token(args, work, scratch)
            else:
                attend_tokens(args, work, scratch)

    rows, single, header_bytes = variant.rows, variant.single, row_state_bytes(0)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        segments, chunk, tiling = args.segments, args.chunk, Tiling(args.group, args.kv_heads, rows, single)
        end_segment, items, state_bytes = segments_end(segments), 0, header_bytes + 4 * args.value_dim
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
                partial + rows_of(tiling, segment) * state_bytes * segment_items,
            )

    return body
