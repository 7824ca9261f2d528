"""IQ6_K: 256 weights in 212 bytes. A weight is d * scale * (TABLE[q] + shift), where q has 6 bits and the scale 8.

The format is ik_llama.cpp's, whose products use this table, too. (When it decodes weights, it computes the numbers as
a polynomial, which is up to 0.5 from the table.)
"""

from typing import Any

import numpy as np

from quant.encoders.searches.scales import make_integer_multiple
from quant.encoders.searches.shifted_table import make_encode_shifted
from quant.encoders.vector_math import store_scale
from quant.jit.vectors import (
    convert,
    f32x16,
    i8x16,
    i32x16,
    inline,
    load,
    load_half,
    splat,
    store,
    u8x32,
)
from quant.packing.bit_planes import make_nibbles, make_store_nibble_pairs, make_store_plane, make_two_planes
from quant.packing.shifted_table import ShiftedTable, make_shifted_spec

BLOCK = np.dtype([("d", "<f2"), ("extra", "<u2"), ("scales", "i1", 16), ("qs", "u1", 128), ("qh", "u1", 64)])
assert BLOCK.itemsize == 212
D, SCALES, QS, QH, SIZE = 0, 4, 20, 148, 212

# qs:  byte 32j + i holds the low bits of column 64j + i in its low nibble, those of column 64j + 32 + i in its high one
# qh:  byte 32h + i holds the two high bits of columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first lowest
NUMBERS = (
    *(-127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54),
    *(-51, -47, -44, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -11, -8, -5),
    *(-2, 0, 3, 6, 9, 12, 14, 17, 20, 23, 27, 30, 33, 36, 40, 44),
    *(47, 51, 55, 59, 63, 68, 72, 77, 82, 87, 92, 98, 103, 109, 115, 121),
)
TABLE = ShiftedTable(NUMBERS, shift=1, zero_point=128)
low_bits, high_bits = make_nibbles(QS), make_two_planes(2, target_bit=4)
store_low_bits, store_high_bits = make_store_nibble_pairs(QS), make_store_plane(2, 4)


@inline
def indices64(block: int, j: int) -> Any:
    return low_bits(block, j) | high_bits(load(u8x32, block + QH + 32 * (j // 2)), 4 * (j % 2))


@inline
def scales(block: int) -> Any:
    return convert(f32x16, load(i8x16, block + SCALES)) * splat(f32x16, load_half(block + D))


SPEC = make_shifted_spec(TABLE, SIZE, indices64, scales)

# --- encoding -----------------------------------------------------------------------------------------------------

DIVISORS = (-128, -127, -126, -125, -124, -123, -122, -121, 127, 126, 125, 124, 123, 122, 121, 120)


@inline
def store_scales(block: int, d: float, k: Any) -> None:
    """Store d and sixteen scales as multiples of d, one signed byte each."""
    store_scale(block + D, d)
    store(block + SCALES, convert(i8x16, convert(i32x16, k)))


@inline
def store_indices(block: int, indices: int) -> None:
    """Store 256 table indices, one byte each."""
    store_low_bits(block, indices)
    store_high_bits(block + QH, indices)
    store_high_bits(block + QH + 32, indices + 128)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_integer_multiple(-128, 127)
    return make_encode_shifted(SPEC, TABLE, multiple, DIVISORS, 1, store_scales, store_indices, effort)
