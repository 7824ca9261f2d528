"""Groups of weights whose codes are codebook rows with signs, for the encoders of IQ2 and IQ3.

Sixteen groups form a tile: see `quant.encoders.searches.tiles`. First the signs are split off, because codebooks hold
magnitudes. If a format stores only an even number of negative weights in eight, one weight loses its sign: the one with
the least importance * weight**2. Its magnitude becomes negative.
"""

from typing import Any

import numpy as np
from numba import float32, int32, int64, uint8, uint32

from quant.encoders.searches.lattice import END, Lattice, make_fit_row, make_row_number
from quant.encoders.searches.scales import make_odd_multiple, make_search, make_try_scales
from quant.encoders.searches.tiles import WEIGHTS, load_importance, load_weights, make_encode_superblocks
from quant.jit.vectors import absolute, extract, f32x16, i32x16, inline, load, popcount, select, splat, store
from quant.packing.format_spec import FormatSpec

# Candidates for the ratio of the largest scale of a block to d.
DIVISORS = [25 + 0.8 * i for i in range(16)]
# Offsets in scratch memory: the signs of every 8 columns, one bit each; the pair of every codebook row; sums.
SIGNS, PAIRS, SUMS = END, END + 64 * 4, END + 64 * 12


@inline
def signs_of_eight(scratch: int, first: int) -> Any:
    """Return the signs of eight columns as i32x16: one bit per column, the first in the lowest, set if negative."""
    bits, zero = splat(i32x16, int32(0)), splat(f32x16, float32(0.0))
    for j in range(8):
        bits = bits | select(
            load_weights(scratch, first + j) < zero, splat(i32x16, int32(1 << j)), splat(i32x16, int32(0))
        )
    return bits


@inline
def cheapest_sign_of_eight(scratch: int, first: int) -> Any:
    """Return, as i32x16, the bit of the column among eight whose sign matters least."""
    least, bit = splat(f32x16, float32(3e38)), splat(i32x16, int32(0))
    for j in range(8):
        x = load_weights(scratch, first + j)
        matters = load_importance(scratch, first + j) * x * x
        bit = select(matters < least, splat(i32x16, int32(1 << j)), bit)
        least = select(matters < least, matters, least)
    return bit


def make_split_signs(group: int, even: bool) -> Any:
    """Make the inlined function split_signs(scratch).

    It moves the signs of a tile of groups of `group` columns to SIGNS.
    """

    @inline
    def split_signs(scratch: int) -> None:
        none, one = splat(i32x16, int32(0)), splat(i32x16, int32(1))
        for eight in range(group // 8):
            bits, flipped = signs_of_eight(scratch, 8 * eight), none
            if even:
                uneven = (popcount(bits) & one) == one
                flipped = select(uneven, cheapest_sign_of_eight(scratch, 8 * eight), none)
            store(scratch + SIGNS + 64 * eight, bits ^ flipped)
            for j in range(8):
                magnitude = absolute(load_weights(scratch, 8 * eight + j))
                negative = (flipped & splat(i32x16, int32(1 << j))) > none
                magnitude = select(negative, splat(f32x16, float32(0.0)) - magnitude, magnitude)
                store(scratch + WEIGHTS + 64 * (8 * eight + j), magnitude)

    return split_signs


def make_fit(lattice: Lattice, group: int) -> Any:
    """Make the inlined function fit(scratch, s) of `quant.encoders.searches.scales`.

    It also stores the pairs that it finds.
    """
    fit_row, rows = make_fit_row(lattice), group // lattice.columns

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
    """Return the signs of eight columns of a group as uint32, one bit each."""
    return load(uint32, scratch + SIGNS + 64 * eight + 4 * group)


def make_row_at(lattice: Lattice) -> Any:
    """Make the inlined row_at(scratch, group, number), which returns the index of the codebook row as uint32."""
    row_number = make_row_number(lattice)

    @inline
    def row_at(scratch: int, group: int, number: int) -> Any:
        return uint32(row_number(int64(load(int32, scratch + PAIRS + 64 * number + 4 * group))))

    return row_at


@inline
def scale_at(k: Any, group: int) -> Any:
    """Return the scale code of a group as uint32: 0, 1, 2, ... for 1, 3, 5, ... times d."""
    return uint32(int32(extract(k, group)) >> int32(1))


@inline
def store_scale_nibbles(k: Any, first: int, count: int, address: int) -> None:
    """Store the scale codes of `count` groups, two in a byte, the first in the low nibble."""
    for group in range(first, first + count, 2):
        packed = scale_at(k, group) | (scale_at(k, group + 1) << uint32(4))
        store(address + (group - first) // 2, uint8(packed))


@inline
def word_of_signs_and_scale(scratch: int, k: Any, group: int) -> Any:
    """Return the signs and the scale code of 32 columns in one uint32: see `quant.packing.codebook_signs`."""
    word = scale_at(k, group) << uint32(28)
    for eight in range(4):
        word |= (signs_at(scratch, group, eight) & uint32(127)) << uint32(7 * eight)
    return uint32(word)


def target_codes(least: float, most: float, effort: str) -> list[float]:
    """Return the codes to which the trials map the largest magnitude of a group."""
    return [float(end) for end in np.linspace(least, most, {"fast": 3, "normal": 6}[effort])]


def make_encode(
    lattice: Lattice,
    spec: FormatSpec,
    targets: tuple[float, float],
    store_block: Any,
    effort: str,
    *,
    even_signs: bool,
) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`.

    The trials map the largest magnitude of a group to codes between the two `targets`. The scales are odd multiples of
    d, up to 31. `even_signs`: the format stores only even numbers of negative weights in eight.
    `quant.encoders.searches.tiles.make_encode_superblocks` describes store_block.
    """
    fit, split_signs = make_fit(lattice, spec.group_size), make_split_signs(spec.group_size, even_signs)
    try_scales = make_try_scales(fit, spec.group_size, target_codes(*targets, effort))
    search = make_search(fit, try_scales, make_odd_multiple(1, 31), 2, DIVISORS, spec.n_groups, effort)

    @inline
    def encode_groups(scratch: int) -> Any:
        split_signs(scratch)
        d, k = search(scratch)
        fit(scratch, d * k)
        return d, k

    return make_encode_superblocks(spec, encode_groups, store_block)
