"""Groups of weights whose codes are rows of a codebook, with signs: what the encoders of IQ2 and IQ3 share.

Sixteen groups are a tile: see `quant.encoders.searches.tiles`. It loses its signs first; what a codebook is searched
for are the magnitudes. Where only an even number of weights in eight can be negative, one of them gives its sign up:
that with the least importance * weight**2, whose magnitude is negative from then on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import float32, int32, int64, uint8, uint32

from quant.encoders.searches.lattice import BEHIND, Lattice, row_fitting, row_numbers
from quant.encoders.searches.scales import odd, searching, trying
from quant.encoders.searches.tiles import WEIGHTS, by_tiles, important, tile_word, weight
from quant.jit.vectors import (
    absolute,
    count_bits,
    extract,
    f32x16,
    i32x16,
    inline,
    load,
    select,
    splat,
    store,
)

# The farthest scale of a block over d.
DIVISORS = [25 + 0.8 * i for i in range(16)]
# In the scratch memory: of every 8 columns a bit for each; of every row of the codebook its pair; sums.
SIGNS, PAIRS, SUMS = BEHIND, BEHIND + 64 * 4, BEHIND + 64 * 12


@inline
def signs_of_eight(scratch: int, first: int) -> Any:
    """i32x16: a bit for each of eight columns, the first in the lowest, where a weight is negative."""
    bits, zero = splat(i32x16, int32(0)), splat(f32x16, float32(0.0))
    for j in range(8):
        bits = bits | select(weight(scratch, first + j) < zero, splat(i32x16, int32(1 << j)), splat(i32x16, int32(0)))
    return bits


@inline
def least_of_eight(scratch: int, first: int) -> Any:
    """i32x16: the bit of the one of eight columns whose sign matters least."""
    least, bit = splat(f32x16, float32(3e38)), splat(i32x16, int32(0))
    for j in range(8):
        x = weight(scratch, first + j)
        matters = important(scratch, first + j) * x * x
        bit = select(matters < least, splat(i32x16, int32(1 << j)), bit)
        least = select(matters < least, matters, least)
    return bit


def signs_word(group: int, even: bool) -> Any:
    """The word take_signs(scratch): from the weights of groups of so many columns into the memory behind."""

    @inline
    def take_signs(scratch: int) -> None:
        none, one = splat(i32x16, int32(0)), splat(i32x16, int32(1))
        for eight in range(group // 8):
            bits, given_up = signs_of_eight(scratch, 8 * eight), none
            if even:
                uneven = (count_bits(bits) & one) == one
                given_up = select(uneven, least_of_eight(scratch, 8 * eight), none)
            store(scratch + SIGNS + 64 * eight, bits ^ given_up)
            for j in range(8):
                magnitude = absolute(weight(scratch, 8 * eight + j))
                negative = (given_up & splat(i32x16, int32(1 << j))) > none
                magnitude = select(negative, splat(f32x16, float32(0.0)) - magnitude, magnitude)
                store(scratch + WEIGHTS + 64 * (8 * eight + j), magnitude)

    return take_signs


def fitting(lattice: Lattice, group: int) -> Any:
    """The word fit(scratch, s) for `quant.encoders.searches.scales`; it also remembers the pairs that it finds."""
    fit_row, rows = row_fitting(lattice), group // lattice.columns

    @inline
    def fit(scratch: int, s: Any) -> Any:
        sums = scratch + SUMS
        store(sums, splat(f32x16, float32(0.0)))
        store(sums + 64, splat(f32x16, float32(0.0)))
        for row in range(rows):
            store(scratch + PAIRS + 64 * row, fit_row(scratch, row, s, float32(0.0), sums))
        return load(f32x16, sums) / load(f32x16, sums + 64), load(f32x16, sums + 64)

    return fit


@inline
def signs_at(scratch: int, group: int, eight: int) -> Any:
    """uint32: the signs of eight columns of a group, a bit each."""
    return load(uint32, scratch + SIGNS + 64 * eight + 4 * group)


def rows_word(lattice: Lattice) -> Any:
    """The word row_at(scratch, group, number): which row of the codebook was found, uint32."""
    row_number = row_numbers(lattice)

    @inline
    def row_at(scratch: int, group: int, number: int) -> Any:
        return uint32(row_number(int64(load(int32, scratch + PAIRS + 64 * number + 4 * group))))

    return row_at


@inline
def scale_at(k: Any, group: int) -> Any:
    """uint32: the scale whose odd multiple of d a group has: 0, 1, 2, ... for 1, 3, 5, ..."""
    return uint32(int32(extract(k, group)) >> int32(1))


@inline
def put_nibbles(k: Any, first: int, count: int, place: int) -> None:
    """The scales of so many groups, two in a byte, the first in the low nibble."""
    for group in range(first, first + count, 2):
        packed = scale_at(k, group) | (scale_at(k, group + 1) << uint32(4))
        store(place + (group - first) // 2, uint8(packed))


def row_ends(least: float, most: float, effort: str) -> list[float]:
    """What the farthest weight of a group may become, in codes."""
    return [float(end) for end in np.linspace(least, most, {"fast": 3, "normal": 6}[effort])]


def encoding(
    lattice: Lattice, group: int, even: bool, ends: Sequence[float], block_bytes: int, put_block: Any, effort: str
) -> Any:
    """The word `encode` of `quant.encoders.encode`, given put_block(scratch, d, k, first, block), which writes one
    block of groups whose lanes begin at `first`. The scales are odd multiples of d, up to 31."""
    fit, take_signs, groups = fitting(lattice, group), signs_word(group, even), 256 // group
    make_tile = tile_word(group, groups)
    search = searching(fit, trying(fit, group, ends), odd(31), 2, DIVISORS, groups, effort)

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        make_tile(x, importance, unit, scratch)
        take_signs(scratch)
        d, k = search(scratch)
        fit(scratch, d * k)
        for first in range(0, 16, groups):
            put_block(scratch, extract(d, first), k, first, y + block_bytes * (first // groups))

    return by_tiles(group, 16 // groups * block_bytes, encode_tile)
