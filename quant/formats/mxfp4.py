"""MXFP4: 32 weights in 17 bytes; a weight is 2**(e - 128) * KVALUES[q], q of 4 bits: see `quant.codes.e2m1`.

Source: the OCP microscaling formats (MX) specification 1.0; e is an E8M0 scale. ggml knows no NaN here: e = 255 is
2**127.
"""

from typing import Any

import numpy as np
from numba import float32, float64, int32, uint8, uint32

from quant.codes.e2m1 import CODES, ZERO, nearest
from quant.codes.nibbles import from_table, runs_of
from quant.codes.words import Words
from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    extract,
    f32x8,
    f32x16,
    i32x16,
    inline,
    largest,
    load,
    maximum,
    pieces,
    select,
    splat,
    store,
    u8x8,
    u8x16,
    u32x8,
)

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 17
SIZE = BLOCK.itemsize


@inline
def powers(e: Any) -> Any:
    """2**(e - 128) of a u8x8: the exponent of a float, but for 0 and 1, where it is subnormal and a single bit."""
    bits = convert(u32x8, e)
    one = splat(u32x8, uint32(1))
    subnormal = (bits + one) << splat(u32x8, uint32(21))
    normal = (bits - one) << splat(u32x8, uint32(23))
    return bitcast(f32x8, select(bits > one, normal, subnormal))


eight_exponents = pieces(u8x8, range(0, 8 * SIZE, SIZE), 1, 8 * SIZE)


@inline
def scales(superblock: int) -> Any:
    return powers(eight_exponents(superblock))


@inline
def scale(row: int, g: int) -> Any:
    return extract(powers(splat(u8x8, load(uint8, row + SIZE * g))), 0)


codes64, codes32, ordered = from_table(BLOCK, CODES)
WORDS = Words(
    *(5, 32, 8 * SIZE, codes64, scales),
    codes32=codes32, scale=scale, zero=ZERO, order="halves", ordered=ordered, runs=runs_of(BLOCK, CODES),
)  # fmt: skip

# --- encoding -----------------------------------------------------------------------------------------------------

LOG2_E = 1.4426950408889634


@inline
def exponent_of(most: float) -> Any:
    """e of a block whose largest magnitude is `most`: floor(log2(most)) + 125, at least 0.

    The logarithm is rounded to float32 first, so numbers a hair below a power of two count as that power.
    """
    bits = bitcast(int32, most)
    above = (bits >> int32(23)) - int32(126)  # the power of two above `most`
    lacking = float64((int32(0) - bits) & int32(0x7FFFFF)) * (2.0**-24 * LOG2_E)
    hair = lacking > 0.0 and float32(float64(above) - lacking) == float32(above)
    return max(above - int32(1) + int32(hair) + int32(125), int32(0))


@inline
def inverse_of_power(e: int) -> Any:
    """2**(128 - e), so that weights become KVALUES; 0 for e = 0, where weights are as good as zero."""
    return bitcast(float32, int32((int32(255) - e) << int32(23))) if e > 0 else float32(0.0)


@inline
def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """A row of blocks, as `quant.encoders.encode` asks for them. The largest magnitude says the scale, whatever is
    important."""
    for block in range(n // 32):
        first, second = load(f32x16, x + 128 * block), load(f32x16, x + 128 * block + 64)
        e = exponent_of(largest(maximum(absolute(first), absolute(second))))
        low, high = nearest(first, inverse_of_power(e)), nearest(second, inverse_of_power(e))
        store(y + SIZE * block, uint8(e))
        store(y + SIZE * block + 1, convert(u8x16, low | (high << splat(i32x16, int32(4)))))


def encoder(effort: str) -> Any:
    """The word `encode`: the format's specification leaves nothing to search."""
    return encode
