"""MXFP4: 32 weights in 17 bytes; a weight is 2**(e - 128) * KVALUES[q], q of 4 bits.

Source: the OCP microscaling formats (MX) specification 1.0; e is an E8M0 scale, q an E2M1 number. KVALUES are those
numbers doubled, so the scale is half of what the specification says. ggml knows no NaN here: e = 255 is 2**127.
"""

from typing import Any

import numpy as np
from numba import uint8, uint32

from quant.nibbles import from_table
from quant.vectors import bitcast, convert, extract, f32x8, gather, inline, load, select, splat, u8x8, u32x8
from quant.words import Words

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 17
SIZE = BLOCK.itemsize

KVALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
ZERO = 12


@inline
def powers(e: Any) -> Any:
    """2**(e - 128) of a u8x8: the exponent of a float, but for 0 and 1, where it is subnormal and a single bit."""
    bits = convert(u32x8, e)
    one = splat(u32x8, uint32(1))
    subnormal = (bits + one) << splat(u32x8, uint32(21))
    normal = (bits - one) << splat(u32x8, uint32(23))
    return bitcast(f32x8, select(bits > one, normal, subnormal))


@inline
def scales(superblock: int) -> Any:
    return powers(gather(u8x8, superblock, SIZE))


@inline
def scale(block: int) -> Any:
    return extract(powers(splat(u8x8, load(uint8, block))), 0)


codes64, codes32, ordered = from_table(BLOCK, [value + ZERO for value in KVALUES])
WORDS = Words(
    5, 32, 8 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=ZERO, order="halves", ordered=ordered
)
