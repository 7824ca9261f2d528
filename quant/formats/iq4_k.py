"""IQ4_K: 256 weights in 144 bytes. A weight is d * (scale - 32) * (TABLE[q] + shift), where q has 4 bits and the scale
6.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import int32, uint8, uint32

from quant.encoders.searches.scales import make_integer_multiple
from quant.encoders.searches.shifted_table import make_encode_shifted
from quant.encoders.vector_math import store_scale
from quant.jit.vectors import (
    convert,
    extract,
    f32x16,
    i32x16,
    inline,
    load,
    load_half,
    make_constant,
    splat,
    store,
    u8x8,
    u8x16,
    u32x16,
)
from quant.packing.bit_planes import make_store_nibbles_in_halves
from quant.packing.iq4_codebook import KVALUES, ZERO_POINT
from quant.packing.nibbles import make_nibbles_of_groups, pack_nibbles, unpack_nibbles
from quant.packing.shifted_table import ShiftedTable, make_shifted_spec

BLOCK = np.dtype(
    [("d", "<f2"), ("extra", "<u2"), ("scales_h", "u1", 4), ("scales_l", "u1", 8), ("qs", "u1", 128)]
)  # fmt: skip
assert BLOCK.itemsize == 144
D, SCALES_H, SCALES_L, QS, SIZE = 0, 4, 8, 16, 144

# scales_h:  bits 2k and 2k + 1 are the two high bits of scale k
# scales_l:  nibble k, the low one of a byte first, holds the four low bits of scale k
# qs:        byte 16k + i holds column 32k + i in its low nibble and column 32k + 16 + i in its high one
TABLE = ShiftedTable(KVALUES, shift=4, zero_point=ZERO_POINT)
steps, store_indices = make_constant(u32x16, range(0, 32, 2)), make_store_nibbles_in_halves(QS)


@inline
def scales(block: int) -> Any:
    low = convert(u32x16, unpack_nibbles(load(u8x8, block + SCALES_L)))
    high = (splat(u32x16, load(uint32, block + SCALES_H)) >> steps()) & splat(u32x16, uint32(3))
    six = convert(i32x16, low | (high << splat(u32x16, uint32(4))))
    return convert(f32x16, six - splat(i32x16, 32)) * splat(f32x16, load_half(block + D))


SPEC = make_shifted_spec(TABLE, SIZE, make_nibbles_of_groups(QS), scales)

# --- encoding -----------------------------------------------------------------------------------------------------

DIVISORS = (-33, -32.5, -32, -31.5, -31, -30.5, -30, -29.5, 32, 31.5, 31, 30.5, 30, 29.5, 29, 28.5)


@inline
def store_scales(block: int, d: float, k: Any) -> None:
    """Store d and sixteen scales as multiples of d, from -32 to 31."""
    store_scale(block + D, d)
    six = convert(u8x16, convert(i32x16, k) + splat(i32x16, int32(32)))
    low, high = six & splat(u8x16, uint8(15)), uint32(0)
    for group in range(16):
        high |= uint32(extract(six, group) >> uint8(4)) << uint32(2 * group)
    store(block + SCALES_H, uint32(high))
    store(block + SCALES_L, pack_nibbles(low))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_integer_multiple(-32, 31)
    return make_encode_shifted(SPEC, TABLE, multiple, DIVISORS, 1, store_scales, store_indices, effort)
