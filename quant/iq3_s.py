"""IQ3_S: 256 weights in 110 bytes; a weight is d * (1 + 2 * scale) * number, four numbers from a codebook.

The scale has 4 bits, a number is odd and at most 15, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint16, uint32, uint64

from quant.codebooks import codebook, look_up, nibbles, with_signs
from quant.vectors import (
    bitcast,
    convert,
    extract,
    f32x8,
    half,
    inline,
    join,
    lanes_of_bits,
    load,
    select,
    splat,
    u8x4,
    u8x16,
    u16x16,
    u64x4,
)
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
assert BLOCK.itemsize == 110
D, QS, QH, SIGNS, SCALES, SIZE = 0, 2, 66, 74, 106, 110

# Byte i of qs and bit i of qh say which row of the codebook; signs has a bit for each column.
ZERO = 16
entries = look_up(ZERO + codebook("iq3_s"), bits=16)


@inline
def rows(block: int, j: int) -> Any:
    """The numbers of sixteen rows of the codebook, four in a lane."""
    high = lanes_of_bits(load(uint16, block + QH + 2 * j))
    ninths = select(high, splat(u16x16, uint16(256)), splat(u16x16, uint16(0)))
    return bitcast(u64x4, convert(u16x16, load(u8x16, block + QS + 16 * j)) | ninths)


@inline
def codes64(block: int, j: int) -> Any:
    numbers = rows(block, j)
    low = join(entries(extract(numbers, int64(0))), entries(extract(numbers, int64(1))))
    high = join(entries(extract(numbers, int64(2))), entries(extract(numbers, int64(3))))
    return with_signs(join(low, high), ZERO, load(uint64, block + SIGNS + 8 * j))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x8, nibbles(bitcast(u8x4, load(uint32, block + SCALES))))
    return (scale + scale + splat(f32x8, float32(1.0))) * splat(f32x8, half(block + D))


WORDS = Words(5, 32, SIZE, codes64, scales, zero=ZERO)
