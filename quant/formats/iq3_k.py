"""IQ3_K: 256 weights in 110 bytes. A weight is d * scale * (TABLE[q] + shift), where q has 3 bits and the scale is an
odd number from -31 to 31.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import float32, int32, uint16

from quant.encoders.searches.scales import make_odd_multiple
from quant.encoders.searches.shifted_table import make_encode_shifted
from quant.encoders.vector_math import store_scale
from quant.jit.vectors import (
    absolute,
    bits_from_mask,
    convert,
    f32x16,
    i32x16,
    inline,
    load,
    load_half,
    mask_from_bits,
    negative,
    select,
    splat,
    store,
    u8x8,
    u8x16,
)
from quant.packing.bit_planes import make_2bit_codes, make_bits, make_joined, make_store_plane
from quant.packing.nibbles import pack_nibbles, unpack_nibbles
from quant.packing.shifted_table import ShiftedTable, make_shifted_spec

BLOCK = np.dtype(
    [("d", "<f2"), ("extra", "<u2"), ("signs", "<u2"), ("scales", "u1", 8), ("qs", "u1", 64), ("qh", "u1", 32)]
)
assert BLOCK.itemsize == 110
D, SIGNS, SCALES, QS, QH, SIZE = 0, 4, 6, 14, 78, 110

# signs:   bit k is set if scale k is negative
# scales:  nibble k, the low one of a byte first, is half of the magnitude of scale k, rounded down
# qs:      byte 32h + i holds the low bits of columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first lowest
# qh:      bit k of byte i is the third bit of column 32k + i
TABLE = ShiftedTable((-63, -40, -23, -10, 1, 13, 28, 47), shift=4, zero_point=63)
indices64 = make_joined(make_2bit_codes(QS), make_bits(QH, 2))
store_low_bits, store_third_bits = make_store_plane(2, 0), make_store_plane(1, 2)


@inline
def scales(block: int) -> Any:
    half = convert(i32x16, unpack_nibbles(load(u8x8, block + SCALES)))
    magnitude = convert(f32x16, half + half + splat(i32x16, 1)) * splat(f32x16, load_half(block + D))
    return select(mask_from_bits(load(uint16, block + SIGNS)), negative(magnitude), magnitude)


SPEC = make_shifted_spec(TABLE, SIZE, indices64, scales)

# --- encoding -----------------------------------------------------------------------------------------------------

DIVISORS = (-33, -32, -31, -30, -29, -28, -27, -26, 33, 32, 31, 30, 29, 28, 27, 26)


@inline
def store_scales(block: int, d: float, k: Any) -> None:
    """Store d and sixteen scales as odd multiples of d."""
    store_scale(block + D, d)
    store(block + SIGNS, bits_from_mask(k < splat(f32x16, float32(0.0))))
    halves = convert(u8x16, convert(i32x16, absolute(k)) >> splat(i32x16, int32(1)))
    store(block + SCALES, pack_nibbles(halves))


@inline
def store_indices(block: int, indices: int) -> None:
    """Store 256 table indices, one byte each."""
    store_low_bits(block + QS, indices)
    store_low_bits(block + QS + 32, indices + 128)
    store_third_bits(block + QH, indices)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_odd_multiple(-31, 31)
    return make_encode_shifted(SPEC, TABLE, multiple, DIVISORS, 2, store_scales, store_indices, effort)
