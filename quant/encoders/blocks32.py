"""The encoders of blocks of 32 weights: Q4_0, Q4_1, Q5_0 and Q5_1.

The best scale and min are searched. With the least effort, and where nothing is known of the columns, the outermost
weights of a block give them, as ggml and the gguf package have it, to the bit.
"""

from typing import Any

from numba import float32, int64, uint32

from quant.codes.nibbles import Block, offset
from quant.encoders.encode import GROUPS
from quant.encoders.encoding import every, inverse_of, put_scale
from quant.encoders.groups import NUMBERS, WEIGHTS, importance_word, units_word
from quant.encoders.searches.affine import center_word
from quant.encoders.searches.affine import search_word as search_affine_word
from quant.encoders.searches.symmetric import search_word as search_symmetric_word
from quant.jit.vectors import (
    absolute,
    bits_of_lanes,
    convert,
    count_bits,
    f32x16,
    floor,
    i32x16,
    inline,
    join,
    largest,
    load,
    maximum,
    minimum,
    rint,
    store,
    u8x16,
)

SCALES, MINS = NUMBERS, NUMBERS + 64  # in scratch


def bytes_word(top: int) -> Any:
    """The word to_bytes(first, second): whole numbers from 0 to `top`, or nearly, as codes."""

    @inline
    def to_bytes(first: Any, second: Any) -> Any:
        first = minimum(maximum(first, every(0.0)), every(top))
        second = minimum(maximum(second, every(0.0)), every(top))
        return join(convert(u8x16, convert(i32x16, first)), convert(u8x16, convert(i32x16, second)))

    return to_bytes


# --- as the gguf package has it -----------------------------------------------------------------------------------


@inline
def farthest(x: int) -> Any:
    """Of the 32 numbers at x the one that is farthest from zero; the first of equals."""
    first, second = absolute(load(f32x16, x)), absolute(load(f32x16, x + 64))
    peak = every(largest(maximum(first, second)))
    there = uint32(bits_of_lanes(first == peak)) | (uint32(bits_of_lanes(second == peak)) << uint32(16))
    before = uint32(~there & (there - uint32(1)))
    return load(float32, x + 4 * int64(count_bits(before)))


def plain_word(block: Block, zero: int, bits: int, put32: Any) -> Any:
    """The word plain(x, y): one block."""
    to_bytes = bytes_word(2**bits - 1)
    d_at, m_at, last = offset(block, "d"), 0 if zero else offset(block, "m"), float32(2**bits - 1)

    @inline
    def symmetric(x: int, y: int) -> None:
        first, second = load(f32x16, x), load(f32x16, x + 64)
        d = farthest(x) / float32(-zero)
        inverse, half = every(inverse_of(d)), every(zero + 0.5)
        put_scale(y + d_at, d)
        put32(y, to_bytes(floor(first * inverse + half), floor(second * inverse + half)))

    @inline
    def affine(x: int, y: int) -> None:
        first, second = load(f32x16, x), load(f32x16, x + 64)
        low, high = float32(0.0) - largest(every(0.0) - minimum(first, second)), largest(maximum(first, second))
        d = (high - low) / last
        inverse, half, least = every(inverse_of(d)), every(0.5), every(low)
        put_scale(y + d_at, d)
        put_scale(y + m_at, low)
        put32(y, to_bytes(floor((first - least) * inverse + half), floor((second - least) * inverse + half)))

    return symmetric if zero else affine


# --- searched -----------------------------------------------------------------------------------------------------


def searched_word(block: Block, zero: int, bits: int, put32: Any, effort: str) -> Any:
    """The word searched(x, importance, count, y, scratch): up to sixteen blocks."""
    in_units, weigh = units_word(32, 1), importance_word(32, 1)
    search_symmetric, center = search_symmetric_word(32, zero), center_word(32)
    search_affine = search_affine_word(32, 2**bits, False, effort)
    to_bytes, d_at, size = bytes_word(2**bits - 1), offset(block, "d"), block.itemsize
    m_at = 0 if zero else offset(block, "m")

    @inline
    def symmetric(columns: int, weights: int, total_w: Any, known: bool) -> Any:
        return search_symmetric(columns, weights, known), every(0.0)

    @inline
    def affine(columns: int, weights: int, total_w: Any, known: bool) -> Any:
        mean, low, high = center(columns, weights, total_w)
        scale, least = search_affine(columns, weights, mean, total_w, low, high, known)
        return scale, least + mean

    search = symmetric if zero else affine

    @inline
    def put_nearest(y: int, x: int, scale: float, least: float) -> None:
        inverse, low = every(inverse_of(put_scale(y + d_at, scale))), every(0.0)
        if not zero:
            low = every(put_scale(y + m_at, least))
        first = rint((load(f32x16, x) - low) * inverse) + every(zero)
        put32(y, to_bytes(first, rint((load(f32x16, x + 64) - low) * inverse) + every(zero)))

    @inline
    def searched(x: int, importance: int, count: int, y: int, scratch: int) -> None:
        unit, _ = in_units(x, count, scratch)
        total_w = weigh(importance, count, scratch, scratch + WEIGHTS)
        scale, least = search(scratch, scratch + WEIGHTS, total_w, importance != 0)
        store(scratch + SCALES, scale * unit)
        store(scratch + MINS, least * unit)
        for i in range(count):
            numbers = scratch + 4 * i
            put_nearest(y + size * i, x + 128 * i, load(float32, numbers + SCALES), load(float32, numbers + MINS))

    return searched


def encoder_of(block: Block, zero: int, bits: int, put32: Any, effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`. A weight is d * (code - zero), or d * code + m where zero is 0.

    put32(block, codes) writes the codes, u8x32, of a block.
    """
    plain, searched = plain_word(block, zero, bits, put32), searched_word(block, zero, bits, put32, effort)
    size = block.itemsize

    @inline
    def search(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        for first in range(0, n // 32, GROUPS):
            weights, count = importance + 128 * first if importance else 0, min(GROUPS, n // 32 - first)
            searched(x + 128 * first, weights, count, y + size * first, scratch)

    @inline
    def search_or_not(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        if importance:
            search(x, importance, n, y, scratch)
        else:
            for i in range(n // 32):
                plain(x + 128 * i, y + size * i)

    return search_or_not if effort == "fast" else search
