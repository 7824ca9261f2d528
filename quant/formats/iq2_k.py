"""IQ2_K: 256 weights in 76 bytes. A weight is d * (scale - 8) * (TABLE[q] + shift), where q has 2 bits and the scale 4.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import int32

from quant.encoders.searches.scales import make_integer_multiple
from quant.encoders.searches.shifted_table import make_encode_shifted
from quant.encoders.vector_math import store_scale
from quant.jit.vectors import (
    convert,
    f32x16,
    i32x16,
    inline,
    load,
    load_half,
    splat,
    store,
    u8x8,
    u8x16,
)
from quant.packing.bit_planes import make_2bit_codes, make_store_plane
from quant.packing.nibbles import pack_nibbles, unpack_nibbles
from quant.packing.shifted_table import ShiftedTable, make_shifted_spec

BLOCK = np.dtype([("d", "<f2"), ("extra", "<u2"), ("scales", "u1", 8), ("qs", "u1", 64)])
assert BLOCK.itemsize == 76
D, SCALES, QS, SIZE = 0, 4, 12, 76

# scales:  nibble k, the low one of a byte first, holds scale k
# qs:      byte 32h + i holds columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first in the lowest bits
TABLE = ShiftedTable((-31, -13, 1, 17), shift=5, zero_point=31)
store_plane = make_store_plane(2, 0)


@inline
def scales(block: int) -> Any:
    packed = unpack_nibbles(load(u8x8, block + SCALES))
    return convert(f32x16, convert(i32x16, packed) - splat(i32x16, 8)) * splat(f32x16, load_half(block + D))


SPEC = make_shifted_spec(TABLE, SIZE, make_2bit_codes(QS), scales)

# --- encoding -----------------------------------------------------------------------------------------------------

DIVISORS = (-8.6, -8.3, -8, -7.7, -7.4, -7.1, -6.8, -6.5, 8, 7.7, 7.4, 7.1, 6.8, 6.5, 6.2, 5.9)


@inline
def store_scales(block: int, d: float, k: Any) -> None:
    """Store d and sixteen scales as multiples of d."""
    store_scale(block + D, d)
    codes = convert(u8x16, convert(i32x16, k) + splat(i32x16, int32(8)))
    store(block + SCALES, pack_nibbles(codes))


@inline
def store_indices(block: int, indices: int) -> None:
    """Store 256 table indices, one byte each."""
    store_plane(block + QS, indices)
    store_plane(block + QS + 32, indices + 128)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_integer_multiple(-8, 7)
    return make_encode_shifted(SPEC, TABLE, multiple, DIVISORS, 1, store_scales, store_indices, effort)
