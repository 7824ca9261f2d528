"""Q1_0: 128 weights in 18 bytes; a weight is d or -d, which of them a bit says."""

from typing import Any

import numpy as np
from numba import float32, uint8, uint16, uint32, uint64

from quant.codes.words import Words
from quant.encoders.encoding import put_scale
from quant.encoders.searches.tiles import bounded, counted, unit_of
from quant.jit.vectors import (
    absolute,
    bits_of_lanes,
    convert,
    f16x8,
    f32x8,
    f32x16,
    fma,
    half,
    inline,
    lanes_of_bits,
    load,
    pieces,
    select,
    splat,
    store,
    total,
    u8x32,
    u8x64,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18
QS, SIZE = 2, 18

# A code is 0 or 2, so that it has a zero in the middle. qs: bit i is that of column i, set for d.
eight_scales = pieces(f16x8, [SIZE * (group // 4) for group in range(8)], 2, 2 * SIZE)


@inline
def codes64(superblock: int, j: int) -> Any:
    bits = load(uint64, superblock + SIZE * (j // 2) + QS + 8 * (j % 2))
    return select(lanes_of_bits(bits), splat(u8x64, uint8(2)), splat(u8x64, uint8(0)))


@inline
def codes32(row: int, k: int) -> Any:
    bits = load(uint32, row + SIZE * (k // 4) + QS + 4 * (k % 4))
    return select(lanes_of_bits(bits), splat(u8x32, uint8(2)), splat(u8x32, uint8(0)))


@inline
def scales(superblock: int) -> Any:
    return convert(f32x8, eight_scales(superblock))


@inline
def scale(row: int, g: int) -> Any:
    return half(row + SIZE * (g // 4))


WORDS = Words(2, 32, 2 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=1)


@inline
def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """A row of blocks, as `quant.encoders.encode` asks for them. With the signs of the weights, their mean magnitude
    has the least squared error; it is a weighted mean where that of columns counts differently."""
    unit = unit_of(importance, n)
    for block in range(n // 128):
        sizes, counts = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
        for part in range(8):
            first = 128 * block + 16 * part
            v, counts_here = bounded(load(f32x16, x + 4 * first)), counted(importance, first, unit)
            sizes, counts = fma(absolute(v), counts_here, sizes), counts + counts_here
            positive = bits_of_lanes(v >= splat(f32x16, float32(0.0)))
            store(y + SIZE * block + QS + 2 * part, uint16(positive))
        put_scale(y + SIZE * block, total(sizes) / total(counts))


def encoder(effort: str) -> Any:
    """The word `encode`: it is the best block, so no effort finds more."""
    return encode
