"""Q4_1: 32 weights in 20 bytes; a weight is d * code + m, the code of 4 bits."""

from typing import Any

import numpy as np
from numba import uint8

from quant.vectors import (
    bitcast,
    convert,
    f16x16,
    f32x16,
    gather,
    half,
    inline,
    join,
    lanes,
    load,
    splat,
    u8x16,
    u8x32,
    u32x8,
)
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 20
D, M, QS, SIZE = 0, 2, 4, 20

evens, odds = lanes(range(0, 16, 2)), lanes(range(1, 16, 2))
# qs:  byte i holds column i in its low nibble and column i + 16 in its high one
two_blocks_in_order = lanes([*range(16), *range(32, 48), *range(16, 32), *range(48, 64)])


@inline
def codes64(block: int, j: int) -> Any:
    at = block + 2 * j * SIZE + QS
    pairs = join(load(u8x16, at), load(u8x16, at + SIZE))
    low, high = pairs & splat(u8x32, uint8(15)), pairs >> splat(u8x32, uint8(4))
    return two_blocks_in_order(join(low, high))


@inline
def scales(block: int) -> Any:
    return evens(convert(f32x16, bitcast(f16x16, gather(u32x8, block, SIZE))))


@inline
def mins(block: int) -> Any:
    return odds(convert(f32x16, bitcast(f16x16, gather(u32x8, block, SIZE))))


@inline
def codes32(block: int) -> Any:
    pairs = load(u8x16, block + QS)
    return join(pairs & splat(u8x16, uint8(15)), pairs >> splat(u8x16, uint8(4)))


@inline
def scale(block: int) -> Any:
    return half(block + D)


@inline
def least(block: int) -> Any:
    return half(block + M)


WORDS = Words(4, 32, 8 * SIZE, codes64, scales, mins, codes32, scale, least)
