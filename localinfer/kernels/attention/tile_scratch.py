"""The scratch memory of a tile of queries."""

from typing import Any, NamedTuple

from localinfer.kernels.layout import page_weights_bytes
from quant.jit.vectors import inline


class TileQueries(NamedTuple):
    """Addresses of a tile's queries in two layouts."""

    columns: int  # float32 [key_dim][rows]: the dimensions of all rows in turn, as scores are computed
    rows: int  # float32 [rows][key_dim]


class TileScratch(NamedTuple):
    """Addresses of what a tile has in scratch memory."""

    queries: TileQueries
    sink_queries: TileQueries  # queries for pages with attention sinks
    weights: int  # scores and weights of a page, float32 [rows][64], then scratch for `weighted_values`
    spans: int  # the visible positions of each row, int32 [rows][2]
    slopes: int  # how much the scores of each row decrease with the distance of a key, float32 [rows]
    positions: int  # of each row, if its scores depend on distances, int32 [rows]
    heads: int  # the query head of each row, if its scores have biases, int32 [rows]
    chosen: int  # of each row, the address of the bits of the chosen entries, if not all count, int64 [rows]
    end: int  # of all that


def make_tile_scratch(rows: int) -> Any:
    """Make tile_scratch(scratch, key_dim): return the `TileScratch` at an address."""
    weights_bytes, spans_bytes = page_weights_bytes(rows), 64 * rows

    @inline
    def tile_scratch(scratch: int, key_dim: int) -> TileScratch:
        size = 4 * rows * key_dim
        queries = TileQueries(scratch, scratch + size)
        sink_queries = TileQueries(scratch + 2 * size, scratch + 3 * size)
        weights = scratch + 4 * size
        spans = weights + weights_bytes
        slopes = spans + 8 * rows
        positions = slopes + 4 * rows
        heads = positions + 4 * rows
        chosen, end = spans + 32 * rows, spans + spans_bytes
        return TileScratch(queries, sink_queries, weights, spans, slopes, positions, heads, chosen, end)

    return tile_scratch
