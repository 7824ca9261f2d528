"""Q2_K: 256 weights in 84 bytes; a weight is d * scale * code - dmin * min, code of 2 bits, scale and min of 4."""

from typing import Any

import numpy as np
from numba import uint8

from quant.codes.planes import fours_of_planes, planes, put_planes
from quant.codes.words import Field, Multiples, Runs, Words
from quant.encoders.affine_superblocks import encoder_of
from quant.encoders.encoding import put_scale
from quant.jit.vectors import convert, f32x16, half, inline, load, splat, store, u8x16, u8x32

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
assert BLOCK.itemsize == 84
SCALES, QS, D, DMIN, SIZE = 0, 16, 80, 82, 84

# qs:      byte 32h + i holds columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first in the lowest bits
# scales:  byte k holds the scale of group k in its low nibble and the min in its high one
twos, put_twos = planes(2), put_planes(2, 0)


@inline
def codes64(block: int, j: int) -> Any:
    return twos(load(u8x32, block + QS + 32 * (j // 2)), 4 * (j % 2))


@inline
def scales(block: int) -> Any:
    packed = load(u8x16, block + SCALES) & splat(u8x16, uint8(15))
    return convert(f32x16, packed) * splat(f32x16, half(block + D))


@inline
def mins(block: int) -> Any:
    packed = load(u8x16, block + SCALES) >> splat(u8x16, uint8(4))
    return convert(f32x16, packed) * splat(f32x16, -half(block + DMIN))


@inline
def put_scales(block: int, d: float, dmin: float, scales: int, mins: int) -> None:
    """Write d and dmin, and sixteen scales and mins, a byte each below 16."""
    put_scale(block + D, d)
    put_scale(block + DMIN, dmin)
    store(block + SCALES, load(u8x16, scales) | (load(u8x16, mins) << splat(u8x16, uint8(4))))


@inline
def put_codes(block: int, codes: int) -> None:
    """Write 256 codes, a byte each, under the scales that are there."""
    put_twos(block + QS, codes)
    put_twos(block + QS + 32, codes + 128)


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(WORDS, 15, put_scales, put_codes, effort)


SIXTEENS = [(Field(QS + 32 * (k // 4) + i, 2 * (k % 4), bits=2),) for k in range(8) for i in (0, 16)]
NIBBLES = (
    Multiples(tuple((Field(SCALES + i),) for i in (0, 4, 8, 12)), D),
    Multiples(tuple((Field(SCALES + i, 4),) for i in (0, 4, 8, 12)), DMIN, negative=True),
)
WORDS = Words(
    2, 16, SIZE, codes64, scales, mins, order="fours", ordered=fours_of_planes(QS),
    runs=Runs(tuple(SIXTEENS), SIZE), multiples=NIBBLES,
)  # fmt: skip
