"""TQ2_0: 256 weights in 66 bytes. A weight is d * (code - 1), where the code has 2 bits."""

from typing import Any

import numpy as np
from numba import int32

from quant.encoders.ternary import largest_magnitude, trits
from quant.encoders.vector_math import safe_reciprocal, store_scale
from quant.jit.vectors import convert, i32x16, inline, load, splat, store, u8x16, u8x32
from quant.packing.bit_planes import make_2bit_codes_in_pairs, make_two_planes
from quant.packing.format_spec import FormatSpec
from quant.packing.half_scales import make_superblock_scale

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])
assert BLOCK.itemsize == 66
QS, D, SIZE = 0, 64, 66

# qs:  byte 32h + i holds columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first in the lowest bits
two_planes = make_two_planes(2)


@inline
def codes64(block: int, j: int) -> Any:
    return two_planes(load(u8x32, block + QS + 32 * (j // 2)), 4 * (j % 2))


SPEC = FormatSpec(
    bits=2,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=make_superblock_scale(D),
    zero_point=1,
    order="pairs",
    ordered_codes=make_2bit_codes_in_pairs(QS),
)


@inline
def pack_2bit(x: int, inverse: float) -> Any:
    """Return the packed codes of sixteen columns of each of four planes."""
    codes = trits(x, inverse)
    for plane in range(1, 4):
        codes = codes | (trits(x + 128 * plane, inverse) << splat(i32x16, int32(2 * plane)))
    return convert(u8x16, codes)


@inline
def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """Encode a row with the codes nearest to its weights: see `quant.encoders.encoder`."""
    for block in range(n // 256):
        weights, block_address = x + 1024 * block, y + SIZE * block
        d = largest_magnitude(weights)
        for i in range(4):
            at = weights + 512 * (i // 2) + 64 * (i % 2)
            store(block_address + QS + 16 * i, pack_2bit(at, safe_reciprocal(d)))
        store_scale(block_address + D, d)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row. The largest magnitude determines d, so `effort` is ignored."""
    return encode_row
