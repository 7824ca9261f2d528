"""MXFP4: 32 weights in 17 bytes. A weight is 2**(e - 128) * KVALUES[q], where q has 4 bits: see `quant.packing.e2m1`.

Source: the OCP microscaling formats (MX) specification 1.0; e is an E8M0 scale. In ggml's version e = 255 is 2**127
instead of NaN.
"""

from typing import Any

import numpy as np
from numba import float32, float64, int32, uint8, uint32

from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    extract,
    f32x8,
    f32x16,
    i32x16,
    inline,
    load,
    make_gather,
    maximum,
    reduce_max,
    select,
    splat,
    store,
    u8x8,
    u8x16,
    u32x8,
)
from quant.packing.e2m1 import CODES, KVALUES, ZERO_POINT, nearest_e2m1
from quant.packing.format_spec import FormatSpec
from quant.packing.nibbles import make_table_codes, nibble_layout

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 17
SIZE = BLOCK.itemsize


@inline
def decode_e8m0(e: Any) -> Any:
    """Return 2**(e - 128) for a u8x8, built from float bits. For e = 0 and 1 the number is subnormal, with a single bit
    set.
    """
    bits = convert(u32x8, e)
    one = splat(u32x8, uint32(1))
    subnormal = (bits + one) << splat(u32x8, uint32(21))
    normal = (bits - one) << splat(u32x8, uint32(23))
    return bitcast(f32x8, select(bits > one, normal, subnormal))


eight_exponents = make_gather(u8x8, range(0, 8 * SIZE, SIZE), 1, 8 * SIZE)


@inline
def scales(superblock: int) -> Any:
    return decode_e8m0(eight_exponents(superblock))


@inline
def scale(row: int, g: int) -> Any:
    return extract(decode_e8m0(splat(u8x8, load(uint8, row + SIZE * g))), 0)


codes64, codes32, ordered, signed = make_table_codes(BLOCK, KVALUES, ZERO_POINT)
SPEC = FormatSpec(
    bits=5,
    group_size=32,
    superblock_bytes=8 * SIZE,
    codes64=codes64,
    scales=scales,
    codes32=codes32,
    group_scale=scale,
    zero_point=ZERO_POINT,
    order="halves",
    ordered_codes=ordered,
    signed_codes=signed,
    code_layout=nibble_layout(BLOCK, CODES),
)

# --- encoding -----------------------------------------------------------------------------------------------------

LOG2_E = 1.4426950408889634


@inline
def block_exponent(most: float) -> Any:
    """Return e for a block whose largest magnitude is `most`: floor(log2(most)) + 125, at least 0.

    As in ggml, the logarithm is rounded to float32 first, so numbers just below a power of two count as that power.
    """
    bits = bitcast(int32, most)
    upper_exponent = (bits >> int32(23)) - int32(126)  # exponent of the power of two above `most`
    log2_gap = float64((int32(0) - bits) & int32(0x7FFFFF)) * (2.0**-24 * LOG2_E)
    rounds_up = log2_gap > 0.0 and float32(float64(upper_exponent) - log2_gap) == float32(upper_exponent)
    return max(upper_exponent - int32(1) + int32(rounds_up) + int32(125), int32(0))


@inline
def inverse_scale(e: int) -> Any:
    """Return 2**(128 - e), which scales weights to KVALUES, or 0 for e = 0, where weights round to zero."""
    return bitcast(float32, int32((int32(255) - e) << int32(23))) if e > 0 else float32(0.0)


@inline
def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """Encode a row of blocks: see `quant.encoders.encoder`. The largest magnitude determines the scale; `importance` is
    ignored.
    """
    for block in range(n // 32):
        first, second = load(f32x16, x + 128 * block), load(f32x16, x + 128 * block + 64)
        e = block_exponent(reduce_max(maximum(absolute(first), absolute(second))))
        low, high = nearest_e2m1(first, inverse_scale(e)), nearest_e2m1(second, inverse_scale(e))
        store(y + SIZE * block, uint8(e))
        store(y + SIZE * block + 1, convert(u8x16, low | (high << splat(i32x16, int32(4)))))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row. The specification determines the result, so `effort`
    is ignored.
    """
    return encode_row
