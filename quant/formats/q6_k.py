"""Q6_K: 256 weights in 210 bytes. A weight is d * scale * (code - 32); the code has 6 bits, the scale is a signed
byte.
"""

from typing import Any

import numpy as np
from numba import uint8

from quant.encoders.symmetric_superblocks import make_encode
from quant.encoders.vector_math import store_scale
from quant.jit.bits import make_shift_insert
from quant.jit.cpu import target
from quant.jit.vectors import (
    concat,
    convert,
    f32x16,
    i8x16,
    inline,
    load,
    load_half,
    splat,
    store,
    u8x32,
    u8x64,
)
from quant.packing.bit_planes import make_store_plane, make_two_planes
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec, ScaleLayout

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
assert BLOCK.itemsize == 210
QL, QH, SCALES, D, SIZE = 0, 128, 192, 208, 210

# For each half h of the block, columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32:
#   ql:  byte 64h + i holds the low bits of i and 64 + i in its nibbles, byte 64h + 32 + i those of 32 + i and 96 + i
#   qh:  byte 32h + i holds the two high bits of all four, the first in the lowest
high_bits, store_high_bits = make_two_planes(2, target_bit=4), make_store_plane(2, 4)


@inline
def codes64(block: int, j: int) -> Any:
    pairs = load(u8x64, block + QL + 64 * (j // 2))
    low = (pairs >> splat(u8x64, uint8(4 * (j % 2)))) & splat(u8x64, uint8(15))
    return low | high_bits(load(u8x32, block + QH + 32 * (j // 2)), 4 * (j % 2))


insert_above, insert_below = make_shift_insert("sli", 4), make_shift_insert("sri", 4)


@inline
def codes64_by_insertion(block: int, j: int) -> Any:
    """Return the codes of columns 64j .. 64j+63. Requires `target().has_shift_insert`."""
    pairs, high = load(u8x64, block + QL + 64 * (j // 2)), load(u8x32, block + QH + 32 * (j // 2))
    moved = high >> splat(u8x32, uint8(2))
    if j % 2 == 0:
        return insert_above(pairs, concat(high, moved) & splat(u8x64, uint8(0x03)))
    return insert_below(concat(high & splat(u8x32, uint8(0x30)), moved), pairs)


@inline
def scales(block: int) -> Any:
    return convert(f32x16, load(i8x16, block + SCALES)) * splat(f32x16, load_half(block + D))


@inline
def store_scales(block: int, d: float, scales: int) -> None:
    """Store d and sixteen scales, one signed byte each."""
    store(block + SCALES, load(i8x16, scales))
    store_scale(block + D, d)


@inline
def store_codes(block: int, codes: int) -> None:
    """Store 256 codes, one byte each, and leave the scales as they are."""
    for h in range(2):
        first, second = load(u8x64, codes + 128 * h), load(u8x64, codes + 128 * h + 64)
        nibble = splat(u8x64, uint8(15))
        store(block + QL + 64 * h, (first & nibble) | ((second & nibble) << splat(u8x64, uint8(4))))
        store_high_bits(block + QH + 32 * h, codes + 128 * h)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 128, store_scales, store_codes, effort)


CODE_FIELDS = [
    (
        BitField(QL + 64 * (k // 4) + 32 * (k % 2) + i, k // 2 % 2 * 4),
        BitField(QH + 32 * (k // 4) + i, 2 * (k % 4), bits=2, target_bit=4),
    )
    for k in range(8)
    for i in (0, 16)
]
SCALE_LAYOUT = ScaleLayout(tuple((BitField(SCALES + i, bits=8),) for i in (0, 4, 8, 12)), D, signed=True)
SPEC = FormatSpec(
    bits=6,
    group_size=16,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    zero_point=32,
    ordered_codes=codes64_by_insertion if target().has_shift_insert else None,
    code_layout=CodeLayout(tuple(CODE_FIELDS), SIZE),
    scale_layouts=(SCALE_LAYOUT,),
)
