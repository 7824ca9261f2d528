"""Q5_0: 32 weights in 22 bytes; a weight is d * (code - 16), the code of 5 bits."""

from typing import Any

import numpy as np
from numba import uint8, uint32, uint64

from quant.vectors import (
    bitcast,
    convert,
    f16x8,
    f32x8,
    gather,
    half,
    inline,
    join,
    lanes,
    lanes_of_bits,
    load,
    select,
    splat,
    u8x16,
    u8x32,
    u8x64,
    u16x8,
)
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 22
D, QH, QS, SIZE = 0, 2, 6, 22

# qs:  byte i holds the low four bits of column i in its low nibble, and of column i + 16 in its high one
# qh:  bit i is the fifth bit of column i
two_blocks_in_order = lanes([*range(16), *range(32, 48), *range(16, 32), *range(48, 64)])


@inline
def codes64(block: int, j: int) -> Any:
    at = block + 2 * j * SIZE
    pairs = join(load(u8x16, at + QS), load(u8x16, at + SIZE + QS))
    nibbles = two_blocks_in_order(join(pairs & splat(u8x32, uint8(15)), pairs >> splat(u8x32, uint8(4))))
    fifths = uint64(load(uint32, at + QH)) | (uint64(load(uint32, at + SIZE + QH)) << uint64(32))
    return nibbles | select(lanes_of_bits(fifths), splat(u8x64, uint8(16)), splat(u8x64, uint8(0)))


@inline
def scales(block: int) -> Any:
    return convert(f32x8, bitcast(f16x8, gather(u16x8, block + D, SIZE)))


@inline
def codes32(block: int) -> Any:
    pairs = load(u8x16, block + QS)
    nibbles = join(pairs & splat(u8x16, uint8(15)), pairs >> splat(u8x16, uint8(4)))
    fifths = lanes_of_bits(load(uint32, block + QH))
    return nibbles | select(fifths, splat(u8x32, uint8(16)), splat(u8x32, uint8(0)))


@inline
def scale(block: int) -> Any:
    return half(block + D)


WORDS = Words(5, 32, 8 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=16)
