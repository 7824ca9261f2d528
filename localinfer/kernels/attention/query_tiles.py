"""The division of a batch's queries into tiles, and of the pages that they attend to into chunks."""

from typing import NamedTuple

from numba import int64

from localinfer.kernels.layout import MIN_TILES_UNSPLIT, MIN_WHOLE_TILES
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import inline, load


class Tiling(NamedTuple):
    """How the queries of a segment are divided into tiles: `group` query heads share each of `kv_heads` key heads. A
    tile has `rows` rows, or `single` rows in segments of one token.
    """

    group: int
    kv_heads: int
    rows: int
    single: int


@inline
def count_chunks(segment: int, chunk: int) -> int:
    """Return the number of chunks of `chunk` pages that a segment's pages are divided into."""
    return (load(int64, segment + 16) + chunk - 1) // chunk


@inline
def rows_of(tiling: Tiling, segment: int) -> int:
    """Return the rows of a segment's tiles."""
    return tiling.single if load(int64, segment) == 1 else tiling.rows


@inline
def tiles_of(tiling: Tiling, segment: int) -> int:
    """Return the number of a segment's tiles."""
    rows = rows_of(tiling, segment)
    return (load(int64, segment) * tiling.group + rows - 1) // rows * tiling.kv_heads


@inline
def are_chunks_shared(tiling: Tiling, segments: int, chunk: int) -> int:
    """Return whether a batch has so few tiles that threads share their chunks."""
    tiles, chunks = 0, 0
    for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
        tiles, chunks = tiles + tiles_of(tiling, segment), max(chunks, count_chunks(segment, chunk))
    return tiles < (MIN_TILES_UNSPLIT if chunks > 1 else MIN_WHOLE_TILES)
