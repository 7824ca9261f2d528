"""IQ1_M: 256 weights in 56 bytes. A weight is d * (1 + 2 * scale) * (number + delta), eight numbers from a codebook.

The scale has 3 bits. A number is -1, 0 or 1. delta is 1/8 or -1/8 for each 8 columns. The code is 8 * (number + delta)
plus the zero point.
"""

from typing import Any

import numpy as np
from numba import float32, uint8, uint16, uint32, uint64

from quant.encoders.lattice_deltas import SUMS, make_encode, row_at, shift_at
from quant.encoders.lattice_groups import scale_at
from quant.jit.vectors import (
    bitcast,
    bits_from_mask,
    convert,
    extract,
    f16x16,
    f32x16,
    inline,
    load,
    mask_from_bits,
    select,
    splat,
    store,
    store_half,
    u8x16,
    u8x32,
    u8x64,
    u16x4,
    u16x16,
    u16x32,
    u64x4,
    u64x8,
)
from quant.packing.codebook_scales import odd_multiples16
from quant.packing.format_spec import FormatSpec
from quant.packing.iq1_codebook import ZERO_POINT, codes_with_positive_delta, make_unpack_3bit
from quant.packing.nibbles import unpack_nibbles

BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
assert BLOCK.itemsize == 56
QS, QH, SCALES, SIZE = 0, 32, 48, 56

# Byte i of qs and three bits of nibble i of qh are the index of a codebook row; the fourth bit is the sign of delta.
# scales:  ddddDDDCCCBBBAAA    A-D: four scales, the first in A    d: four bits of d, those of the first the lowest
unpack_3bit = make_unpack_3bit(u64x4)


@inline
def codes64(block: int, j: int) -> Any:
    high = unpack_nibbles(load(u8x16, block + QH))  # the codebook has 2048 rows: the lookup ignores the fourth bit
    wide = convert(u16x32, high) << splat(u16x32, uint16(8))
    codes = codes_with_positive_delta(bitcast(u64x8, convert(u16x32, load(u8x32, block + QS)) | wide), j)
    negative = bits_from_mask(high > splat(u8x32, uint8(7))) >> uint32(8 * j)
    none, two = splat(u64x8, uint64(0)), splat(u64x8, uint64(0x0202020202020202))
    return codes - bitcast(u8x64, select(mask_from_bits(uint8(negative)), two, none))


@inline
def super_scale(block: int) -> Any:
    """Return d, a half precision number whose bits are spread over the four 16-bit words of `scales`."""
    packed = load(uint64, block + SCALES)
    low = ((packed >> uint64(12)) & uint64(0x000F)) | ((packed >> uint64(24)) & uint64(0x00F0))
    high = ((packed >> uint64(36)) & uint64(0x0F00)) | ((packed >> uint64(48)) & uint64(0xF000))
    return extract(convert(f32x16, bitcast(f16x16, splat(u16x16, uint16(low | high)))), 0)


@inline
def scales(block: int) -> Any:
    scale = bitcast(u16x16, unpack_3bit(convert(u64x4, load(u16x4, block + SCALES))))
    return odd_multiples16(scale, super_scale(block) * float32(0.125))


SPEC = FormatSpec(bits=5, group_size=16, superblock_bytes=SIZE, codes64=codes64, scales=scales, zero_point=ZERO_POINT)


# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_scales(scratch: int, d: float, k: Any, block: int) -> None:
    """Store d, four of its sixteen bits in each 16-bit word, and the scales of sixteen groups."""
    store_half(scratch + SUMS, d)
    bits = uint32(load(uint16, scratch + SUMS))
    for four in range(4):
        packed = ((bits >> uint32(4 * four)) & uint32(15)) << uint32(12)
        for i in range(4):
            packed |= scale_at(k, 4 * four + i) << uint32(3 * i)
        store(block + SCALES + 2 * four, uint16(packed))


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its sixteen groups."""
    store_scales(scratch, d, k, block)
    for group in range(16):
        high = uint32(0)
        for row in range(2):
            way = shift_at(scratch, group, row)
            number = row_at(scratch, group, row, way)
            store(block + QS + 2 * group + row, uint8(number))
            high |= ((number >> uint32(8)) | (way << uint32(3))) << uint32(4 * row)
        store(block + QH + group, uint8(high))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 1, store_block, effort)
