"""IQ4_XS: 256 weights in 136 bytes; a weight is d * (scale - 32) * KVALUES[q], q of 4 bits, scale of 6."""

from typing import Any

import numpy as np
from numba import uint16, uint32

from quant.iq4_nl import CODES, ZERO
from quant.nibbles import nibbles64
from quant.planes import nibble_pairs
from quant.vectors import convert, f32x8, half, i32x8, inline, load, lookup16, numbers, splat, u32x8
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
assert BLOCK.itemsize == 136
D, SCALES_H, SCALES_L, QS, SIZE = 0, 2, 4, 8, 136

# qs:        byte 16k + i holds column 32k + i in its low nibble and column 32k + 16 + i in its high one
# scales_l:  nibble k, the low one of a byte first, holds the four low bits of scale k
# scales_h:  bits 2k and 2k + 1 are the two high bits of scale k
code_of, halves = lookup16(CODES), nibble_pairs(QS)
fours, twos = numbers(u32x8, range(0, 32, 4)), numbers(u32x8, range(0, 16, 2))


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 32 * j
    return code_of(nibbles64(at, at + 16))


@inline
def ordered(block: int, j: int) -> Any:
    return code_of(halves(block, j))


@inline
def scales(block: int) -> Any:
    low = splat(u32x8, load(uint32, block + SCALES_L)) >> fours()
    high = splat(u32x8, uint32(load(uint16, block + SCALES_H)) << uint32(4)) >> twos()
    six = (low & splat(u32x8, uint32(0x0F))) | (high & splat(u32x8, uint32(0x30)))
    return convert(f32x8, convert(i32x8, six) - splat(i32x8, 32)) * splat(f32x8, half(block + D))


WORDS = Words(8, 32, SIZE, codes64, scales, zero=ZERO, order="halves", ordered=ordered)
