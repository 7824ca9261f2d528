"""Groups of weights whose codes are rows of a codebook of -1, 0 and 1, moved by 1/8 up or down: what the encoders of
IQ1_S and IQ1_M share. Sixteen groups are a tile: see `quant.encoders.searches.tiles`."""

from typing import Any

import numpy as np
from numba import float32, int32, int64, uint32

from quant.codes.codebooks import codebook
from quant.encoders.searches.lattice import BEHIND, Lattice, row_fitting, row_numbers
from quant.encoders.searches.scales import odd, searching, trying
from quant.encoders.searches.tiles import by_tiles, tile_word
from quant.jit.vectors import extract, f32x16, i32x16, inline, load, select, splat, store

LATTICE = Lattice((codebook("iq1_s") + 1).view(np.uint8))  # its numbers are 0, 1 and 2
UP = -1 + 1 / 8  # what makes codes of them
ROW_COLUMNS = 8
# The farthest scale of a block over d; what the farthest weight of a group may become, in codes.
DIVISORS = [12 + 0.4 * i for i in range(16)]
ENDS = (1.4, 2.4)

# In the scratch memory: the pairs of rows moved up and, behind them, of rows moved down; of rows that move together
# the way, 1 for down; sums of both ways.
PAIRS, WAYS, SUMS = BEHIND, BEHIND + 64 * 8, BEHIND + 64 * 12
number_of_row = row_numbers(LATTICE)


def fitting(group: int, together: int) -> Any:
    """The word fit(scratch, s) for `quant.encoders.searches.scales`, where so many rows move together."""
    fit_row, rows = row_fitting(LATTICE), group // ROW_COLUMNS

    @inline
    def fit(scratch: int, s: Any) -> Any:
        zero, none, one = splat(f32x16, float32(0.0)), splat(i32x16, int32(0)), splat(i32x16, int32(1))
        product, norm = zero, zero
        for first in range(0, rows, together):
            for way in range(2):
                sums, shift = scratch + SUMS + 128 * way, float32(UP - 0.25 * way)
                store(sums, zero)
                store(sums + 64, zero)
                for row in range(first, first + together):
                    pair = fit_row(scratch, row, s, shift, sums)
                    store(scratch + PAIRS + 64 * (4 * way + row), pair)
            up, up_norm = load(f32x16, scratch + SUMS), load(f32x16, scratch + SUMS + 64)
            down, down_norm = load(f32x16, scratch + SUMS + 128), load(f32x16, scratch + SUMS + 192)
            falls = s * (down + down - s * down_norm) > s * (up + up - s * up_norm)
            product, norm = product + select(falls, down, up), norm + select(falls, down_norm, up_norm)
            store(scratch + WAYS + 64 * (first // together), select(falls, one, none))
        return product / norm, norm

    return fit


@inline
def way_at(scratch: int, group: int, number: int) -> Any:
    """uint32: 1 where rows of a group that move together are moved down, else 0."""
    return load(uint32, scratch + WAYS + 64 * number + 4 * group)


@inline
def row_at(scratch: int, group: int, row: int, way: int) -> Any:
    """uint32: which row of the codebook was found."""
    pair = load(int32, scratch + PAIRS + 64 * (4 * int64(way) + row) + 4 * group)
    return uint32(number_of_row(int64(pair)))


def encoding(group: int, together: int, block_bytes: int, put_block: Any, effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`, given put_block(scratch, d, k, first, block), which writes one
    block of groups whose lanes begin at `first`. The scales are odd multiples of d, up to 15."""
    fit, groups = fitting(group, together), 256 // group
    make_tile = tile_word(group, groups)
    search = searching(fit, trying(fit, group, ENDS), odd(15), 2, DIVISORS, groups, effort)

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        make_tile(x, importance, unit, scratch)
        d, k = search(scratch)
        fit(scratch, d * k)
        for first in range(0, 16, groups):
            put_block(scratch, extract(d, first), k, first, y + block_bytes * (first // groups))

    return by_tiles(group, 16 // groups * block_bytes, encode_tile)
