"""Q8_0: 32 weights in 34 bytes. A weight is d * q, where q is a signed byte."""

from typing import Any

import numpy as np
from numba import float32, uint8

from quant.encoders.vector_math import round_half_away, safe_reciprocal, store_scale
from quant.jit.vectors import (
    absolute,
    concat,
    convert,
    f32x16,
    i8x16,
    i32x16,
    inline,
    load,
    maximum,
    minimum,
    reduce_max,
    splat,
    store,
    u8x32,
    u8x64,
)
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec
from quant.packing.half_scales import make_half_scales

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
assert BLOCK.itemsize == 34
D, QS, SIZE = 0, 2, 34

# A code is q + 128, which equals q with its sign bit flipped.
FLIP = uint8(128)


@inline
def signed_codes(block: int, j: int) -> Any:
    at = block + 2 * j * SIZE + QS
    return concat(load(u8x32, at), load(u8x32, at + SIZE))


@inline
def codes64(block: int, j: int) -> Any:
    return signed_codes(block, j) ^ splat(u8x64, FLIP)


@inline
def codes32(row: int, k: int) -> Any:
    return load(u8x32, row + SIZE * k + QS) ^ splat(u8x32, FLIP)


@inline
def store_codes32(block: int, codes: Any) -> None:
    """Store 32 codes, u8x32, and leave the scale as it is."""
    store(block + QS, codes ^ splat(u8x32, FLIP))


@inline
def round_to_bytes(v: Any) -> Any:
    """Round an f32x16 to signed bytes, clamped to -127 .. 127."""
    limit = splat(f32x16, float32(127.0))
    return convert(i8x16, convert(i32x16, minimum(maximum(round_half_away(v), splat(f32x16, float32(-127.0))), limit)))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`.

    The largest magnitude of a block gets code 127; `effort` and `importance` are ignored.
    """

    @inline
    def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        for block in range(n // 32):
            first, second = load(f32x16, x + 128 * block), load(f32x16, x + 128 * block + 64)
            d = reduce_max(maximum(absolute(first), absolute(second))) / float32(127.0)
            inverse = splat(f32x16, safe_reciprocal(d))
            store_scale(y + SIZE * block + D, d)
            store(y + SIZE * block + QS, concat(round_to_bytes(first * inverse), round_to_bytes(second * inverse)))

    return encode_row


scales, group_scale = make_half_scales(BLOCK)
SPEC = FormatSpec(
    bits=8,
    group_size=32,
    superblock_bytes=8 * SIZE,
    codes64=codes64,
    signed_codes=signed_codes,
    scales=scales,
    codes32=codes32,
    group_scale=group_scale,
    zero_point=128,
    code_layout=CodeLayout(
        ((BitField(QS, bits=8),), (BitField(QS + 16, bits=8),)),
        SIZE,
        code_offset=128,
        leading_halves=1,
    ),
)
