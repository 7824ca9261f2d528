"""Q3_K: 256 weights in 110 bytes. A weight is d * (scale - 32) * (code - 4); the code has 3 bits, the scale 6."""

from typing import Any

import numpy as np
from numba import uint8, uint32

from quant.encoders.symmetric_superblocks import make_encode
from quant.encoders.vector_math import store_scale
from quant.jit.bits import make_shift_insert
from quant.jit.cpu import target
from quant.jit.vectors import (
    bitcast,
    concat,
    convert,
    extract,
    f32x16,
    i32x16,
    inline,
    load,
    load_half,
    make_constant,
    make_shuffle,
    splat,
    store,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u32x4,
)
from quant.packing.bit_planes import (
    make_2bit_codes,
    make_2bit_codes_in_pairs,
    make_bits,
    make_bits_in_pairs,
    make_joined,
    make_store_plane,
)
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
assert BLOCK.itemsize == 110
HMASK, QS, SCALES, D, SIZE = 0, 32, 96, 108, 110

# qs:     byte 32h + i holds the two low bits of columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first lowest
# hmask:  bit k of byte i is the third bit of column 32k + i
# scales: the low nibbles of bytes 0-7 are the four low bits of scales 0-7, the high ones those of scales 8-15;
#         byte 8 + i holds the two high bits of scales i, 4 + i, 8 + i, 12 + i, the first in the lowest
codes64 = make_joined(make_2bit_codes(QS), make_bits(HMASK, 2))
ordered = make_joined(make_2bit_codes_in_pairs(QS), make_bits_in_pairs(HMASK, 2))
store_low_bits, store_third_bits = make_store_plane(2, 0), make_store_plane(1, 2)
upper_eight, first_eight = make_shuffle([*range(8, 16)] * 2), make_shuffle(range(8))
steps = make_constant(u32x4, [0, 2, 4, 6])


insert_third_bit = make_shift_insert("sli", 2)


@inline
def ordered_by_insertion(block: int, j: int) -> Any:
    """Return `ordered_codes` for CPUs with `target().has_shift_insert`."""
    mask, low = load(u8x32, block + HMASK), load(u8x64, block + QS) >> splat(u8x64, uint8(2 * j))
    third = concat(mask >> splat(u8x32, uint8(j)), mask >> splat(u8x32, uint8(j + 4)))
    return insert_third_bit(low, third) & splat(u8x64, uint8(7))


@inline
def scales(block: int) -> Any:
    pairs = load(u8x8, block + SCALES)
    low = concat(pairs & splat(u8x8, uint8(15)), pairs >> splat(u8x8, uint8(4)))
    high = bitcast(u8x16, splat(u32x4, load(uint32, block + SCALES + 8)) >> steps())
    six = low | ((high & splat(u8x16, uint8(3))) << splat(u8x16, uint8(4)))
    return convert(f32x16, convert(i32x16, six) - splat(i32x16, 32)) * splat(f32x16, load_half(block + D))


@inline
def store_scales(block: int, d: float, scales: int) -> None:
    """Store d and sixteen scales, one signed byte each from -32 to 31, in the packing described above."""
    six = load(u8x16, scales) + splat(u8x16, uint8(32))
    nibble = splat(u8x16, uint8(15))
    pairs = (six & nibble) | (upper_eight(six & nibble) << splat(u8x16, uint8(4)))
    store(block + SCALES, first_eight(pairs))
    high = bitcast(u32x4, six >> splat(u8x16, uint8(4))) << steps()
    # numba widens this expression to 64 bits: storing those would write two bytes after the block.
    high_bits = uint32(extract(high, 0) | extract(high, 1) | extract(high, 2) | extract(high, 3))
    store(block + SCALES + 8, high_bits)
    store_scale(block + D, d)


@inline
def store_codes(block: int, codes: int) -> None:
    """Store 256 codes, one byte each, and leave the scales as they are."""
    store_low_bits(block + QS, codes)
    store_low_bits(block + QS + 32, codes + 128)
    store_third_bits(block + HMASK, codes)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 32, store_scales, store_codes, effort)


CODE_FIELDS = [
    (BitField(QS + 32 * (k // 4) + i, 2 * (k % 4), bits=2), BitField(HMASK + i, k, bits=1, target_bit=2))
    for k in range(8)
    for i in (0, 16)
]
SPEC = FormatSpec(
    bits=3,
    group_size=16,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    zero_point=4,
    order="pairs",
    ordered_codes=ordered_by_insertion if target().has_shift_insert else ordered,
    code_layout=CodeLayout(tuple(CODE_FIELDS), SIZE),
)
