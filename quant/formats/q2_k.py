"""Q2_K: 256 weights in 84 bytes. A weight is d * scale * code - dmin * min; the code has 2 bits, the scale
and min 4.
"""

from typing import Any

import numpy as np
from numba import uint8

from quant.encoders.affine_superblocks import make_encode
from quant.encoders.vector_math import store_scale
from quant.jit.vectors import convert, f32x16, inline, load, load_half, splat, store, u8x16
from quant.packing.bit_planes import make_2bit_codes, make_2bit_codes_in_pairs, make_store_plane
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec, ScaleLayout

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
assert BLOCK.itemsize == 84
SCALES, QS, D, DMIN, SIZE = 0, 16, 80, 82, 84

# qs:      byte 32h + i holds columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first in the lowest bits
# scales:  byte k holds the scale of group k in its low nibble and the min in its high one
store_2bit_plane = make_store_plane(2, 0)


@inline
def scales(block: int) -> Any:
    packed = load(u8x16, block + SCALES) & splat(u8x16, uint8(15))
    return convert(f32x16, packed) * splat(f32x16, load_half(block + D))


@inline
def mins(block: int) -> Any:
    packed = load(u8x16, block + SCALES) >> splat(u8x16, uint8(4))
    return convert(f32x16, packed) * splat(f32x16, -load_half(block + DMIN))


@inline
def store_scales(block: int, d: float, dmin: float, scales: int, mins: int) -> None:
    """Store d and dmin, and sixteen scales and mins, one byte each below 16."""
    store_scale(block + D, d)
    store_scale(block + DMIN, dmin)
    store(block + SCALES, load(u8x16, scales) | (load(u8x16, mins) << splat(u8x16, uint8(4))))


@inline
def store_codes(block: int, codes: int) -> None:
    """Store 256 codes, one byte each, and leave the scales as they are."""
    store_2bit_plane(block + QS, codes)
    store_2bit_plane(block + QS + 32, codes + 128)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 15, store_scales, store_codes, effort)


CODE_FIELDS = [(BitField(QS + 32 * (k // 4) + i, 2 * (k % 4), bits=2),) for k in range(8) for i in (0, 16)]
SCALE_LAYOUTS = (
    ScaleLayout(tuple((BitField(SCALES + i),) for i in (0, 4, 8, 12)), D),
    ScaleLayout(tuple((BitField(SCALES + i, 4),) for i in (0, 4, 8, 12)), DMIN, negated=True),
)
SPEC = FormatSpec(
    bits=2,
    group_size=16,
    superblock_bytes=SIZE,
    codes64=make_2bit_codes(QS),
    scales=scales,
    mins=mins,
    order="pairs",
    ordered_codes=make_2bit_codes_in_pairs(QS),
    code_layout=CodeLayout(tuple(CODE_FIELDS), SIZE),
    scale_layouts=SCALE_LAYOUTS,
)
