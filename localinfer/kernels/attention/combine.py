"""Merging of the partial softmax states that threads leave when they share the chunks of a tile.

`localinfer.kernels.attention.paged_attention` describes the chunks. Merging takes little time, so the sizes of heads
are arguments: the kernel is compiled once, not for each model.
"""

from collections.abc import Callable
from typing import Any

from numba import int64

from localinfer.kernels.attention.cache_types import CACHE_TYPES
from localinfer.kernels.attention.online_softmax import merge
from localinfer.kernels.attention.output import OutputHeads, make_store_output
from localinfer.kernels.attention.query_tiles import Tiling, are_chunks_shared, count_chunks, rows_of, tiles_of
from localinfer.kernels.layout import row_state_bytes
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import load


def combine(min_rows: int, v_type: str, tile: int, passes: int) -> Callable[..., None]:
    """Make the kernel that merges the partial states of shared chunks into that of the first chunk, and stores the
    output.

    Tiles have max(tile_rows, min_rows) rows; with `separate_tokens`, those of segments of one token have `tile_rows`.
    The cache has values of type `v_type`. The output is quantized for tiles of `tile` tokens in `passes` passes.
    """
    store_output, header_bytes = make_store_output(CACHE_TYPES[v_type], tile, passes), row_state_bytes(0)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        segments, group, value_dim, most_rows = args.segments, args.group, args.value_dim, max(args.tile_rows, min_rows)
        tiling = Tiling(group, args.kv_heads, most_rows, args.tile_rows if args.separate_tokens else most_rows)
        if not are_chunks_shared(tiling, segments, args.chunk):
            return
        heads = OutputHeads(args.kv_heads * group, value_dim, args.value_size, args.entry_dim)
        stride = header_bytes + 4 * value_dim
        items = load(int64, args.tokens) * heads.n_heads
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        first, partial = 0, args.partial  # the first token and the partial states of this segment
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            count, chunks, rows = load(int64, segment), count_chunks(segment, args.chunk), rows_of(tiling, segment)
            for item in range(max(first_item, first * heads.n_heads), min(end_item, (first + count) * heads.n_heads)):
                token, head = item // heads.n_heads, item % heads.n_heads
                query = (token - first) * group + head % group
                first_row = rows * chunks * (query // rows * args.kv_heads + head // group)
                state = partial + stride * (first_row + query % rows)
                for chunk in range(1, chunks):
                    merge(state, state + stride * rows * chunk, value_dim)
                store_output(args, heads, state, token, head, head + 1)
            first, partial = first + count, partial + stride * rows * tiles_of(tiling, segment) * chunks

    return body
