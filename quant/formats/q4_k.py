"""Q4_K: 256 weights in 144 bytes. A weight is d * scale * code - dmin * min; the code has 4 bits, the scale
and min 6.
"""

from typing import Any

import numpy as np
from numba import uint32, uint64

from quant.encoders.affine_superblocks import make_encode
from quant.encoders.vector_math import store_scale
from quant.jit.cpu import target
from quant.jit.vectors import (
    bitcast,
    convert,
    f16x8,
    f32x8,
    f32x16,
    inline,
    load,
    make_constant,
    make_shuffle,
    negative,
    splat,
    store,
    u8x8,
    u8x16,
    u8x32,
    u32x4,
)
from quant.packing.bit_planes import make_nibbles_in_evens, make_store_nibble_pairs, make_two_planes
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec, ScaleLayout

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
assert BLOCK.itemsize == 144
D, DMIN, SCALES, QS, SIZE = 0, 2, 4, 16, 144

# qs:  byte 32j + i holds column 64j + i in its low nibble and column 64j + 32 + i in its high one
# scales: the scales and mins of groups 0-3 whole, those of groups 4-7 in two pieces
#   0-3   EEAAAAAA   A: scale 0-3    E: the two high bits of scale 4-7
#   4-7   eeaaaaaa   a: min 0-3      e: the two high bits of min 4-7
#   8-11  ffffFFFF   F: the four low bits of scale 4-7    f: those of min 4-7
SIX, FOUR, TWO, TOP = uint32(0x3F3F3F3F), uint32(0x0F0F0F0F), uint32(0x03030303), uint32(0x30303030)
first, second = make_shuffle([0] * 8), make_shuffle([1] * 8)
words_of_low_bits, words_of_high_bits = make_shuffle([1, 3, 2, 3]), make_shuffle([1, 1, 2, 2])
low_shifts, low_masks = make_constant(u32x4, [0, 0, 0, 4]), make_constant(u32x4, [0x3F3F3F3F, 0x0F0F0F0F] * 2)
high_masks, first_and_second = make_constant(u32x4, [0, 0x30303030] * 2), make_shuffle([0] * 8 + [1] * 8)
lower_eight, upper_eight = make_shuffle(range(8)), make_shuffle(range(8, 16))
nibbles, store_codes = make_two_planes(4), make_store_nibble_pairs(QS)


@inline
def unpack_6bit(whole: int, low: int) -> Any:
    """Return eight 6-bit numbers: four stored whole, and four from their low bits and the top bits of `whole`."""
    first = whole & SIX
    second = (low & FOUR) | (((whole >> uint32(6)) & TWO) << uint32(4))
    return bitcast(u8x8, uint64(first) | (uint64(second) << uint64(32)))


@inline
def codes64(block: int, j: int) -> Any:
    return nibbles(load(u8x32, block + QS + 32 * j), 0)


@inline
def d_and_dmin(block: int) -> Any:
    """Return d and dmin in the first two lanes. The other six lanes are meaningless: they convert the bytes that
    follow.
    """
    return convert(f32x8, load(f16x8, block + D))


@inline
def scales(block: int) -> Any:
    packed = unpack_6bit(load(uint32, block + SCALES), load(uint32, block + SCALES + 8))
    return convert(f32x8, packed) * first(d_and_dmin(block))


@inline
def mins(block: int) -> Any:
    packed = unpack_6bit(load(uint32, block + SCALES + 4), load(uint32, block + SCALES + 8) >> uint32(4))
    return convert(f32x8, packed) * negative(second(d_and_dmin(block)))


@inline
def scales_and_mins(block: int) -> Any:
    """Return the scales times d, then the mins times dmin, f32x16, computed in vectors: two rows at a time would need
    too many general registers for `unpack_6bit`.
    """
    packed = load(u32x4, block + D)
    low = (words_of_low_bits(packed) >> low_shifts()) & low_masks()
    high = (words_of_high_bits(packed) >> splat(u32x4, uint32(2))) & high_masks()
    return convert(f32x16, bitcast(u8x16, low | high)) * first_and_second(d_and_dmin(block))


@inline
def vector_scales(block: int) -> Any:
    return lower_eight(scales_and_mins(block))


@inline
def vector_mins(block: int) -> Any:
    return negative(upper_eight(scales_and_mins(block)))


@inline
def store_scales(block: int, d: float, dmin: float, scales: int, mins: int) -> None:
    """Store d and dmin, and eight scales and mins, one byte each below 64, in the packing described above."""
    store_scale(block + D, d)
    store_scale(block + DMIN, dmin)
    a, e = load(uint32, scales), load(uint32, scales + 4)
    b, f = load(uint32, mins), load(uint32, mins + 4)
    store(block + SCALES, uint32(a | ((e & TOP) << uint32(2))))
    store(block + SCALES + 4, uint32(b | ((f & TOP) << uint32(2))))
    store(block + SCALES + 8, uint32((e & FOUR) | ((f & FOUR) << uint32(4))))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 63, store_scales, store_codes, effort)


A, E = BitField(SCALES, bits=6), BitField(SCALES, 6, bits=2, target_bit=4)
B, F = BitField(SCALES + 4, bits=6), BitField(SCALES + 4, 6, bits=2, target_bit=4)
SCALE_LAYOUTS = (
    ScaleLayout(((A,), (BitField(SCALES + 8), E)), D),
    ScaleLayout(((B,), (BitField(SCALES + 8, 4), F)), DMIN, negated=True),
)
SCALES_AND_MINS = (vector_scales, vector_mins) if target().has_512_bit_vectors else (scales, mins)
SPEC = FormatSpec(
    bits=4,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=SCALES_AND_MINS[0],
    mins=SCALES_AND_MINS[1],
    order="evens",
    ordered_codes=make_nibbles_in_evens(QS),
    code_layout=CodeLayout(tuple((BitField(QS + 16 * (i % 2), i // 2 * 4),) for i in range(4)), 32),
    scale_layouts=SCALE_LAYOUTS,
)
