"""Sixteen groups of weights side by side, a lane for each: how encoders look at a row, so that sums need no shuffling.

A tile is those groups, transposed in scratch memory:

    weights     column by column, 16 float32 each: column j of every group
    importance  what their squared errors count, alike

Trials of scales lie behind them (see `quant.encoders.searches.scales`), and what else a format needs behind those.
"""

from typing import Any

from numba import float32, int64, uint8

from quant.encoders.objective import emphasis_word
from quant.jit.vectors import absolute, f32x16, gather, inline, load, maximum, minimum, select, splat, store

LANES = 16
WEIGHTS, IMPORTANCE, TRIALS, FREE = 0, 2048, 4096, 12288  # where things lie in the scratch memory
PADDED = 1 << 17  # and where a tile is completed that the end of a row cuts

# No format reaches farther, and squares of this are far from infinite.
LARGEST_WEIGHT = 1e9
# The least importance, as a part of the largest one of a row: where nothing is important, all weights count the same.
LEAST_IMPORTANCE = 2.0**-30


@inline
def weight(scratch: int, column: int) -> Any:
    """A column of the tile."""
    return load(f32x16, scratch + WEIGHTS + 64 * column)


@inline
def important(scratch: int, column: int) -> Any:
    """The importance of a column of the tile."""
    return load(f32x16, scratch + IMPORTANCE + 64 * column)


@inline
def bounded(v: Any) -> Any:
    """An f32x16 of weights, none of them beyond LARGEST_WEIGHT."""
    most = splat(f32x16, float32(LARGEST_WEIGHT))
    return minimum(maximum(v, splat(f32x16, float32(-LARGEST_WEIGHT))), most)


@inline
def counted(importance: int, first: int, unit: float) -> Any:
    """f32x16: what squared errors of sixteen columns from one on count, where `unit` times the largest importance is 1;
    all alike where nothing is known."""
    even = splat(f32x16, float32(1.0))
    if importance != 0:
        even = load(f32x16, importance + 4 * first) * splat(f32x16, unit)
    return maximum(even, splat(f32x16, float32(LEAST_IMPORTANCE)))


def tile_word(group: int, neighbours: int) -> Any:
    """The word make_tile(x, importance, unit, scratch): a tile of 16 groups of so many columns, of which so many share
    a superblock; `unit` times the largest importance is 1. What errors count is said in `quant.encoders.objective`; but
    a group that stands alone, and of which nothing is known, is held to the plain error."""
    emphasize = emphasis_word(group, neighbours)

    @inline
    def make_tile(x: int, importance: int, unit: float, scratch: int) -> None:
        least = splat(f32x16, float32(LEAST_IMPORTANCE))
        for j in range(group):
            store(scratch + WEIGHTS + 64 * j, bounded(gather(f32x16, x + 4 * j, int64(4 * group))))
            even = splat(f32x16, float32(1.0))
            if importance != 0:
                even = maximum(gather(f32x16, importance + 4 * j, int64(4 * group)) * splat(f32x16, unit), least)
            store(scratch + IMPORTANCE + 64 * j, even)
        if importance != 0 or neighbours > 1:
            emphasize(scratch + WEIGHTS, scratch + IMPORTANCE)

    return make_tile


@inline
def farthest(scratch: int, group: int) -> Any:
    """The weight of largest magnitude of each group, with its sign."""
    found = weight(scratch, 0)
    for j in range(1, group):
        column = weight(scratch, j)
        found = select(absolute(column) > absolute(found), column, found)
    return found


@inline
def unit_of(importance: int, n: int) -> Any:
    """One over the largest importance of a row."""
    most = float32(0.0)
    if importance != 0:
        for j in range(n):
            most = max(most, load(float32, importance + 4 * j))
    return float32(1.0) / most if most > float32(1e-30) else float32(1.0)


@inline
def pad(source: int, count: int, columns: int, filling: float, target: int) -> None:
    """Copy so many floats, and fill up to the columns."""
    for j in range(columns):
        store(target + 4 * j, load(float32, source + 4 * j) if j < count else float32(filling))


def by_tiles(group: int, tile_bytes: int, encode_tile: Any) -> Any:
    """The word `encode` of `quant.encoders.encode` from encode_tile(x, importance, unit, y, scratch), which makes so
    many bytes of 16 groups. The end of a row may be less than that: it is encoded with zeros behind it."""
    columns = LANES * group

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        padded, unit = scratch + PADDED, unit_of(importance, n)
        for start in range(0, n, columns):
            count = min(columns, n - start)
            weights, target = x + 4 * start, y + start // columns * tile_bytes
            matters = importance + 4 * start if importance != 0 else 0
            if count < columns:
                pad(weights, count, columns, 0.0, padded)
                weights, target = padded, padded + 8 * columns
                if importance != 0:
                    pad(matters, count, columns, 1.0, padded + 4 * columns)
                    matters = padded + 4 * columns
            encode_tile(weights, matters, unit, target, scratch)
            if count < columns:
                for i in range(count * tile_bytes // columns):
                    store(y + start // columns * tile_bytes + i, load(uint8, target + i))

    return encode
