"""IQ1_S: 256 weights in 50 bytes; a weight is d * (1 + 2 * scale) * (number + delta), eight numbers from a codebook.

The scale has 3 bits, a number is -1, 0 or 1, delta is 1/8 or -1/8 for 32 columns; so a code is 8 * (number + delta).
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint16, uint32, uint64

from quant.codes.codebooks import codebook, look_up
from quant.codes.words import Words
from quant.encoders.lattice_deltas import encoding, row_at, way_at
from quant.encoders.lattice_groups import scale_at
from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x8,
    half,
    inline,
    join,
    lanes,
    load,
    splat,
    store,
    store_half,
    u8x4,
    u8x32,
    u16x8,
    u16x32,
    u64x8,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
assert BLOCK.itemsize == 50
D, QS, QH, SIZE = 0, 2, 34, 50

# Byte i of qs and three bits of qh say which row of the codebook.
# qh:  SsssDDDCCCBBBAAA    S: the sign of delta   s: the scale   A-D: the high bits of four rows, the first in A
ZERO = 16
entries = look_up(ZERO + 8 * codebook("iq1_s") + 1, bits=16)
first_and_third = lanes([0] * 32 + [2] * 32)


def threes_of(kind: Any) -> Any:
    """The word threes(v): four numbers of three bits from each u64 lane, the first in the lowest, 16 bits each."""

    @inline
    def threes(v: Any) -> Any:
        pairs = v | (v << splat(kind, uint64(13)))
        return (pairs | (pairs << splat(kind, uint64(26)))) & splat(kind, uint64(0x0007000700070007))

    return threes


threes = threes_of(u64x8)


@inline
def rows(block: int) -> Any:
    """The numbers of the codebook's rows, four in a lane."""
    high = threes(convert(u64x8, load(u16x8, block + QH))) << splat(u64x8, uint64(8))
    return bitcast(u64x8, convert(u16x32, load(u8x32, block + QS))) | high


@inline
def codes64(block: int, j: int) -> Any:
    numbers = rows(block)
    codes = join(entries(extract(numbers, int64(2 * j))), entries(extract(numbers, int64(2 * j + 1))))
    negative = uint32((load(uint32, block + QH + 4 * j) >> uint32(14)) & uint32(0x00020002))
    return codes - first_and_third(bitcast(u8x4, negative))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x8, (load(u16x8, block + QH) >> splat(u16x8, uint16(12))) & splat(u16x8, uint16(7)))
    return (scale + scale + splat(f32x8, float32(1.0))) * splat(f32x8, half(block + D) * float32(0.125))


WORDS = Words(5, 32, SIZE, codes64, scales, zero=ZERO)


# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def put_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """A block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        way = way_at(scratch, first + i, 0)
        high = (scale_at(k, first + i) << uint32(12)) | (way << uint32(15))
        for row in range(4):
            number = row_at(scratch, first + i, row, way)
            store(block + QS + 4 * i + row, uint8(number))
            high |= (number >> uint32(8)) << uint32(3 * row)
        store(block + QH + 2 * i, uint16(high))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    return encoding(32, 4, SIZE, put_block, effort)
