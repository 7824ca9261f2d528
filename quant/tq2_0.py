"""TQ2_0: 256 weights in 66 bytes; a weight is d * (code - 1), the code of 2 bits."""

from typing import Any

import numpy as np

from quant.planes import planes
from quant.vectors import f32x8, half, inline, load, splat, u8x32
from quant.words import Words

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


WORDS = Words(2, 32, SIZE, codes64, scales, zero=1)
