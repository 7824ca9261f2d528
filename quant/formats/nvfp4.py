"""NVFP4: 64 weights in 36 bytes; a weight is d * KVALUES[q], q of 4 bits (`quant.codes.e2m1`), a d for every 16.

d is an unsigned E4M3 number, halved: four bits of exponent, which is 7 for one, and three of mantissa. 0x7F is 0 here.
Source: NVIDIA's description of the format, ggml's block.
"""

from typing import Any

import numpy as np
from numba import float32, int32, uint8, uint32

from quant.codes.e2m1 import CODES, ZERO, nearest
from quant.codes.words import Words
from quant.encoders.encoding import inverse_of
from quant.encoders.searches.tiles import bounded, counted, unit_of
from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    extract,
    f32x16,
    i32x16,
    inline,
    lanes,
    largest,
    load,
    lookup16,
    numbers,
    pieces,
    select,
    splat,
    store,
    total,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u32x8,
    u32x16,
)

BLOCK = np.dtype([("d", "u1", 4), ("qs", "u1", 32)])
assert BLOCK.itemsize == 36
QS, SIZE = 4, 36

# qs: byte 8s + i holds columns 16s + i and 16s + 8 + i, i < 8, the first in its low nibble
value_of = lookup16(CODES)
twice = [8 * part + i for part in range(4) for _ in range(2) for i in range(8)]
two_of_each, one_of_each = lanes(twice), lanes(twice[:32])
low_then_high, low_then_high8 = numbers(u32x16, [0, 0, 4, 4] * 4), numbers(u32x8, [0, 0, 4, 4] * 2)
sixteen_scales = pieces(u8x16, range(0, 4 * SIZE, SIZE), 4, 4 * SIZE)


@inline
def codes64(superblock: int, j: int) -> Any:
    pairs = bitcast(u32x16, two_of_each(load(u8x32, superblock + SIZE * j + QS)))
    return value_of(bitcast(u8x64, pairs >> low_then_high()) & splat(u8x64, uint8(15)))


@inline
def codes32(row: int, k: int) -> Any:
    pairs = bitcast(u32x8, one_of_each(load(u8x16, row + SIZE * (k // 2) + QS + 16 * (k % 2))))
    return value_of(bitcast(u8x32, pairs >> low_then_high8()) & splat(u8x32, uint8(15)))


@inline
def decoded(d: Any) -> Any:
    """f32x16 of a u8x16. As the bits of a float32 they are the number times 2**-120, subnormal ones, too."""
    bits = (convert(u32x16, d) & splat(u32x16, uint32(0x7F))) << splat(u32x16, uint32(20))
    halved = bitcast(f32x16, bits) * splat(f32x16, float32(2.0**119))
    return select(d == splat(u8x16, uint8(0x7F)), splat(f32x16, float32(0.0)), halved)


@inline
def scales(superblock: int) -> Any:
    return decoded(sixteen_scales(superblock))


@inline
def scale(row: int, g: int) -> Any:
    return extract(decoded(splat(u8x16, load(uint8, row + SIZE * (g // 4) + g % 4))), 0)


WORDS = Words(5, 16, 4 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=ZERO)

# --- encoding -----------------------------------------------------------------------------------------------------

LARGEST_SCALE = 0x7E
NEIGHBOURS = {"fast": 0, "normal": 2}  # that are tried below and above the scale of the largest weight
upper_eight, lower_eight = lanes(range(8, 16)), lanes(range(8))


@inline
def scale_for(most: Any) -> Any:
    """The d for which the largest magnitude is the largest number, rounded as ggml does: a half goes up, of subnormal
    ones too."""
    x = min(most / float32(6.0), float32(448.0))
    bits = bitcast(int32, x)  # as an int: the exponent, 127 for one, then the mantissa
    normal = (bits >> int32(20)) - int32(120 << 3) + ((bits >> int32(19)) & int32(1))
    steps: Any = x * float32(512.0) + float32(0.5)
    subnormal = min(int32(steps), int32(7))
    return min(normal if bits >= int32(121 << 23) else subnormal, int32(LARGEST_SCALE))


@inline
def scale_of(d: int) -> Any:
    return extract(decoded(splat(u8x16, uint8(d))), 0)


@inline
def values(q: Any) -> Any:
    """f32x16: the numbers at these places."""
    return convert(f32x16, convert(i32x16, value_of(convert(u8x16, q)))) - splat(f32x16, float32(ZERO))


def best_scale_word(neighbours: int) -> Any:
    """The word best_scale(x, weights): the d of the least error of sixteen weights, of those near the largest one's."""

    @inline
    def best_scale(x: Any, weights: Any) -> Any:
        middle = scale_for(largest(absolute(x)))
        best, least = middle, float32(np.inf)
        for d in range(max(middle - neighbours, 0), min(middle + neighbours, LARGEST_SCALE) + 1):
            scale = scale_of(d)
            lacking = x - values(nearest(x, inverse_of(scale))) * splat(f32x16, scale)
            error = total(lacking * lacking * weights)
            if error < least:
                best, least = int32(d), error
        return best

    return best_scale


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`. Of effort "fast" the blocks are ggml's."""
    best_scale = best_scale_word(NEIGHBOURS[effort])

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        unit = unit_of(importance, n)
        for g in range(n // 16):
            block, part, sixteen = y + SIZE * (g // 4), g % 4, bounded(load(f32x16, x + 64 * g))
            d = best_scale(sixteen, counted(importance, 16 * g, unit))
            q = nearest(sixteen, inverse_of(scale_of(d)))
            codes = convert(u8x16, q)
            store(block + part, uint8(d))
            store(block + QS + 8 * part, lower_eight(codes) | (upper_eight(codes) << splat(u8x8, uint8(4))))

    return encode
