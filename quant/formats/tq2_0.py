"""TQ2_0: 256 weights in 66 bytes; a weight is d * (code - 1), the code of 2 bits."""

from typing import Any

import numpy as np
from numba import int32

from quant.codes.planes import fours_of_planes, planes
from quant.codes.words import Words
from quant.encoders.encoding import inverse_of, put_scale
from quant.encoders.ternary import largest_magnitude, trits
from quant.jit.vectors import convert, f32x8, half, i32x16, inline, load, splat, store, u8x16, u8x32

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])
assert BLOCK.itemsize == 66
QS, D, SIZE = 0, 64, 66

# qs:  byte 32h + i holds columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first in the lowest bits
twos = planes(2)


@inline
def codes64(block: int, j: int) -> Any:
    return twos(load(u8x32, block + QS + 32 * (j // 2)), 4 * (j % 2))


@inline
def scales(block: int) -> Any:
    return splat(f32x8, half(block + D))


WORDS = Words(2, 32, SIZE, codes64, scales, zero=1, order="fours", ordered=fours_of_planes(QS))


@inline
def packed(x: int, inverse: float) -> Any:
    """The bytes of sixteen columns of each of four planes."""
    codes = trits(x, inverse)
    for plane in range(1, 4):
        codes = codes | (trits(x + 128 * plane, inverse) << splat(i32x16, int32(2 * plane)))
    return convert(u8x16, codes)


@inline
def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """The codes nearest to a row's weights, as `quant.encoders.encode` asks for them."""
    for block in range(n // 256):
        weights, place = x + 1024 * block, y + SIZE * block
        d = largest_magnitude(weights)
        for part in range(4):
            at = weights + 512 * (part // 2) + 64 * (part % 2)
            store(place + QS + 16 * part, packed(at, inverse_of(d)))
        put_scale(place + D, d)


def encoder(effort: str) -> Any:
    """The word `encode`: d says all, so no effort finds more."""
    return encode
