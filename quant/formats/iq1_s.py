"""IQ1_S: 256 weights in 50 bytes. A weight is d * (1 + 2 * scale) * (number + delta), eight numbers from a codebook.

The scale has 3 bits. A number is -1, 0 or 1. delta is 1/8 or -1/8 for each 32 columns. The code is 8 * (number + delta)
plus the zero point.
"""

from typing import Any

import numpy as np
from numba import float32, uint8, uint16, uint32, uint64

from quant.encoders.lattice_deltas import make_encode, row_at, shift_at
from quant.encoders.lattice_groups import scale_at
from quant.jit.vectors import (
    bitcast,
    convert,
    inline,
    load,
    load_half,
    make_shuffle,
    splat,
    store,
    store_half,
    u8x4,
    u8x32,
    u16x8,
    u16x32,
    u64x8,
)
from quant.packing.codebook_scales import odd_multiples8
from quant.packing.format_spec import FormatSpec
from quant.packing.iq1_codebook import ZERO_POINT, codes_with_positive_delta, make_unpack_3bit

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
assert BLOCK.itemsize == 50
D, QS, QH, SIZE = 0, 2, 34, 50

# Byte i of qs and three bits of qh are the index of a codebook row.
# qh:  SsssDDDCCCBBBAAA    S: the sign of delta   s: the scale   A-D: the high bits of four rows, the first in A
first_and_third, unpack_3bit = make_shuffle([0] * 32 + [2] * 32), make_unpack_3bit(u64x8)


@inline
def codebook_rows(block: int) -> Any:
    """Return the indices of the codebook rows, u64x8, four in a lane."""
    high = unpack_3bit(convert(u64x8, load(u16x8, block + QH))) << splat(u64x8, uint64(8))
    return bitcast(u64x8, convert(u16x32, load(u8x32, block + QS))) | high


@inline
def codes64(block: int, j: int) -> Any:
    codes = codes_with_positive_delta(codebook_rows(block), j)
    negative = uint32((load(uint32, block + QH + 4 * j) >> uint32(14)) & uint32(0x00020002))
    return codes - first_and_third(bitcast(u8x4, negative))


@inline
def scales(block: int) -> Any:
    scale = (load(u16x8, block + QH) >> splat(u16x8, uint16(12))) & splat(u16x8, uint16(7))
    return odd_multiples8(scale, load_half(block + D) * float32(0.125))


SPEC = FormatSpec(bits=5, group_size=32, superblock_bytes=SIZE, codes64=codes64, scales=scales, zero_point=ZERO_POINT)


# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        way = shift_at(scratch, first + i, 0)
        high = (scale_at(k, first + i) << uint32(12)) | (way << uint32(15))
        for row in range(4):
            number = row_at(scratch, first + i, row, way)
            store(block + QS + 4 * i + row, uint8(number))
            high |= (number >> uint32(8)) << uint32(3 * row)
        store(block + QH + 2 * i, uint16(high))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 4, store_block, effort)
