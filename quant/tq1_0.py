"""TQ1_0: 256 weights in 54 bytes; a weight is d * (code - 1), the code 0, 1 or 2."""

from typing import Any

import numpy as np
from numba import uint8, uint32

from quant.vectors import (
    bitcast,
    f32x8,
    half,
    inline,
    join,
    load,
    numbers,
    select,
    splat,
    u8x16,
    u8x32,
    u8x64,
    u32x4,
)
from quant.words import Words

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
assert BLOCK.itemsize == 54
QS, QH, D, SIZE = 0, 48, 52, 54

# A byte over 256 is a fraction in base 3, whose digits are codes: multiplying by 3 modulo 256 takes the first one away.
# qs:  byte i < 32 holds columns i, 32 + i, 64 + i, 96 + i, 128 + i, the first in the first digit
#      byte 32 + i, i < 16, holds columns 160 + (i, 16 + i, 32 + i, 48 + i, 64 + i)
# qh:  byte i holds columns 240 + (i, 4 + i, 8 + i, 12 + i)
last_four = numbers(u8x16, [1] * 4 + [3] * 4 + [9] * 4 + [27] * 4)


@inline
def thrice(v: Any) -> Any:
    return v + v + v


@inline
def first_digits(v: Any) -> Any:
    """The whole part of 3/256 of every byte."""
    one, two = splat(u8x64, uint8(1)), splat(u8x64, uint8(2))
    return select(v > splat(u8x64, uint8(170)), two, select(v > splat(u8x64, uint8(85)), one, splat(u8x64, uint8(0))))


@inline
def codes64(block: int, j: int) -> Any:
    whole = load(u8x32, block + QS)
    if j < 2:
        first = join(whole, thrice(whole))
        return first_digits(first if j == 0 else thrice(thrice(first)))
    short = load(u8x16, block + QS + 32)
    if j == 2:
        return first_digits(join(thrice(thrice(thrice(thrice(whole)))), join(short, thrice(short))))
    third = thrice(thrice(short))
    fifth = thrice(thrice(third))
    last = bitcast(u8x16, splat(u32x4, load(uint32, block + QH))) * last_four()
    return first_digits(join(join(third, thrice(third)), join(fifth, last)))


@inline
def scales(block: int) -> Any:
    return splat(f32x8, half(block + D))


WORDS = Words(2, 32, SIZE, codes64, scales, zero=1)
