"""Q3_K: 256 weights in 110 bytes; a weight is d * (scale - 32) * (code - 4), code of 3 bits, scale of 6."""

from typing import Any

import numpy as np
from numba import uint8, uint32

from quant.codes.planes import fours_of_planes, planes, put_planes
from quant.codes.words import Field, Runs, Words
from quant.encoders.encoding import put_scale
from quant.encoders.symmetric_superblocks import encoder_of
from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x16,
    half,
    i32x16,
    inline,
    join,
    lanes,
    load,
    numbers,
    splat,
    store,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u32x4,
)

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
assert BLOCK.itemsize == 110
HMASK, QS, SCALES, D, SIZE = 0, 32, 96, 108, 110

# qs:     byte 32h + i holds the two low bits of columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first lowest
# hmask:  bit k of byte i is the third bit of column 32k + i
# scales: the low nibbles of bytes 0-7 are the four low bits of scales 0-7, the high ones those of scales 8-15;
#         byte 8 + i holds the two high bits of scales i, 4 + i, 8 + i, 12 + i, the first in the lowest
low_bits, third_bit = planes(2), planes(1, at=2)
put_low_bits, put_third_bits = put_planes(2, 0), put_planes(1, 2)
upper_eight, first_eight = lanes([*range(8, 16)] * 2), lanes(range(8))
steps = numbers(u32x4, [0, 2, 4, 6])


two_bits = fours_of_planes(QS)


@inline
def codes64(block: int, j: int) -> Any:
    return low_bits(load(u8x32, block + QS + 32 * (j // 2)), 4 * (j % 2)) | third_bit(load(u8x32, block + HMASK), 2 * j)


@inline
def ordered(block: int, j: int) -> Any:
    mask = load(u8x32, block + HMASK)
    both = join(mask, mask >> splat(u8x32, uint8(4)))
    third = (both >> splat(u8x64, uint8(j))) & splat(u8x64, uint8(1))
    return two_bits(block, j) | (third << splat(u8x64, uint8(2)))


@inline
def scales(block: int) -> Any:
    pairs = load(u8x8, block + SCALES)
    low = join(pairs & splat(u8x8, uint8(15)), pairs >> splat(u8x8, uint8(4)))
    fours = bitcast(u8x16, splat(u32x4, load(uint32, block + SCALES + 8)) >> steps())
    six = low | ((fours & splat(u8x16, uint8(3))) << splat(u8x16, uint8(4)))
    return convert(f32x16, convert(i32x16, six) - splat(i32x16, 32)) * splat(f32x16, half(block + D))


@inline
def put_scales(block: int, d: float, scales: int) -> None:
    """Write d and sixteen scales, a signed byte each from -32 to 31, as the comment above has them."""
    six = load(u8x16, scales) + splat(u8x16, uint8(32))
    nibble = splat(u8x16, uint8(15))
    pairs = (six & nibble) | (upper_eight(six & nibble) << splat(u8x16, uint8(4)))
    store(block + SCALES, first_eight(pairs))
    fours = bitcast(u32x4, six >> splat(u8x16, uint8(4))) << steps()
    # numba makes 64 bits of any such sum: storing those would write two bytes behind the block.
    high_bits = uint32(extract(fours, 0) | extract(fours, 1) | extract(fours, 2) | extract(fours, 3))
    store(block + SCALES + 8, high_bits)
    put_scale(block + D, d)


@inline
def put_codes(block: int, codes: int) -> None:
    """Write 256 codes, a byte each, under the scales that are there."""
    put_low_bits(block + QS, codes)
    put_low_bits(block + QS + 32, codes + 128)
    put_third_bits(block + HMASK, codes)


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(WORDS, 32, put_scales, put_codes, effort)


SIXTEENS = [
    (Field(QS + 32 * (k // 4) + i, 2 * (k % 4), bits=2), Field(HMASK + i, k, bits=1, to=2))
    for k in range(8)
    for i in (0, 16)
]
WORDS = Words(
    3, 16, SIZE, codes64, scales, zero=4, order="fours", ordered=ordered, runs=Runs(tuple(SIXTEENS), SIZE)
)
