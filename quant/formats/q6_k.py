"""Q6_K: 256 weights in 210 bytes; a weight is d * scale * (code - 32), the code of 6 bits, the scale a signed byte."""

from typing import Any

import numpy as np
from numba import uint8

from quant.codes.planes import planes, put_planes
from quant.codes.words import Field, Multiples, Runs, Words
from quant.encoders.encoding import put_scale
from quant.encoders.symmetric_superblocks import encoder_of
from quant.jit.vectors import convert, f32x16, half, i8x16, inline, load, splat, store, u8x32, u8x64

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
assert BLOCK.itemsize == 210
QL, QH, SCALES, D, SIZE = 0, 128, 192, 208, 210

# For each half h of the block, columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32:
#   ql:  byte 64h + i holds the low bits of i and 64 + i in its nibbles, byte 64h + 32 + i those of 32 + i and 96 + i
#   qh:  byte 32h + i holds the two high bits of all four, the first in the lowest
high_bits, put_high_bits = planes(2, at=4), put_planes(2, 4)


@inline
def codes64(block: int, j: int) -> Any:
    pairs = load(u8x64, block + QL + 64 * (j // 2))
    low = (pairs >> splat(u8x64, uint8(4 * (j % 2)))) & splat(u8x64, uint8(15))
    return low | high_bits(load(u8x32, block + QH + 32 * (j // 2)), 4 * (j % 2))


@inline
def scales(block: int) -> Any:
    return convert(f32x16, load(i8x16, block + SCALES)) * splat(f32x16, half(block + D))


@inline
def put_scales(block: int, d: float, scales: int) -> None:
    """Write d and sixteen scales, a signed byte each."""
    store(block + SCALES, load(i8x16, scales))
    put_scale(block + D, d)


@inline
def put_codes(block: int, codes: int) -> None:
    """Write 256 codes, a byte each, under the scales that are there."""
    for h in range(2):
        first, second = load(u8x64, codes + 128 * h), load(u8x64, codes + 128 * h + 64)
        nibble = splat(u8x64, uint8(15))
        store(block + QL + 64 * h, (first & nibble) | ((second & nibble) << splat(u8x64, uint8(4))))
        put_high_bits(block + QH + 32 * h, codes + 128 * h)


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(WORDS, 128, put_scales, put_codes, effort)


SIXTEENS = [
    (
        Field(QL + 64 * (k // 4) + 32 * (k % 2) + i, k // 2 % 2 * 4),
        Field(QH + 32 * (k // 4) + i, 2 * (k % 4), bits=2, to=4),
    )
    for k in range(8)
    for i in (0, 16)
]
BYTES = Multiples(tuple((Field(SCALES + i, bits=8),) for i in (0, 4, 8, 12)), D, signed=True)
WORDS = Words(6, 16, SIZE, codes64, scales, zero=32, runs=Runs(tuple(SIXTEENS), SIZE), multiples=(BYTES,))
