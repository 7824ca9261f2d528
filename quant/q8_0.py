"""Q8_0: 32 weights in 34 bytes; a weight is d * q, q a signed byte."""

from typing import Any

import numpy as np
from numba import uint8

from quant.vectors import bitcast, convert, f16x8, f32x8, gather, half, inline, join, load, splat, u8x32, u8x64, u16x8
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
assert BLOCK.itemsize == 34
D, QS, SIZE = 0, 2, 34

# A code is q + 128, which flipping the sign bit gives.
FLIP = uint8(128)


@inline
def codes64(block: int, j: int) -> Any:
    at = block + 2 * j * SIZE + QS
    return join(load(u8x32, at), load(u8x32, at + SIZE)) ^ splat(u8x64, FLIP)


@inline
def scales(block: int) -> Any:
    return convert(f32x8, bitcast(f16x8, gather(u16x8, block + D, SIZE)))


@inline
def codes32(block: int) -> Any:
    return load(u8x32, block + QS) ^ splat(u8x32, FLIP)


@inline
def scale(block: int) -> Any:
    return half(block + D)


WORDS = Words(8, 32, 8 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=128)
