"""IQ4_XS: 256 weights in 136 bytes; a weight is d * (scale - 32) * KVALUES[q], q of 4 bits, scale of 6."""

from typing import Any

import numpy as np
from numba import int32, uint8, uint16, uint32

from quant.codes.nibbles import nibbles64
from quant.codes.planes import halves_of_nibbles
from quant.codes.words import Field, Runs, Words
from quant.encoders.searches.scales import searching, trying, whole
from quant.encoders.searches.table import coding, ends, fitting, nibbles_of
from quant.encoders.searches.tiles import by_tiles, tile_word
from quant.formats.iq4_nl import CODES, KVALUES, ZERO
from quant.jit.vectors import (
    convert,
    extract,
    f32x8,
    half,
    i32x8,
    inline,
    load,
    lookup16,
    numbers,
    splat,
    store,
    store_half,
    u8x16,
    u32x8,
)

BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
assert BLOCK.itemsize == 136
D, SCALES_H, SCALES_L, QS, SIZE = 0, 2, 4, 8, 136

# qs:        byte 16k + i holds column 32k + i in its low nibble and column 32k + 16 + i in its high one
# scales_l:  nibble k, the low one of a byte first, holds the four low bits of scale k
# scales_h:  bits 2k and 2k + 1 are the two high bits of scale k
code_of, halves = lookup16(CODES), halves_of_nibbles(QS)
fours, twos = numbers(u32x8, range(0, 32, 4)), numbers(u32x8, range(0, 16, 2))


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 32 * j
    return code_of(nibbles64(at, at + 16))


@inline
def ordered(block: int, j: int) -> Any:
    return code_of(halves(block, j))


@inline
def scales(block: int) -> Any:
    low = splat(u32x8, load(uint32, block + SCALES_L)) >> fours()
    high = splat(u32x8, uint32(load(uint16, block + SCALES_H)) << uint32(4)) >> twos()
    six = (low & splat(u32x8, uint32(0x0F))) | (high & splat(u32x8, uint32(0x30)))
    return convert(f32x8, convert(i32x8, six) - splat(i32x8, 32)) * splat(f32x8, half(block + D))


@inline
def put_codes(block: int, codes: int) -> None:
    """Write 256 places in the table, a byte each, under the scales that are there."""
    for group in range(8):
        low, high = load(u8x16, codes + 32 * group), load(u8x16, codes + 32 * group + 16)
        store(block + QS + 16 * group, low | (high << splat(u8x16, uint8(4))))


WORDS = Words(
    *(8, 32, SIZE, codes64, scales),
    zero=ZERO, order="halves", ordered=ordered, table=KVALUES,
    runs=Runs(((Field(QS),), (Field(QS, 4),)), 16, table=tuple(CODES)),
)  # fmt: skip


# --- encoding -----------------------------------------------------------------------------------------------------

# The farthest scale of a block is -32 times d, or not quite.
DIVISORS = (-33, -32.5, -32, -31.5, -31, -30.5, -30, -29.5, 32, 31.5, 31, 30.5, 30, 29.5, 29, 28.5)


@inline
def put_scales(d: Any, k: Any, first: int, block: int) -> None:
    """d and the scales of eight groups, from their lanes."""
    store_half(block + D, extract(d, first))
    low, high = uint32(0), uint32(0)
    for group in range(8):
        six = uint32(int32(extract(k, first + group)) + 32)
        low |= (six & uint32(15)) << uint32(4 * group)
        high |= (six >> uint32(4)) << uint32(2 * group)
    store(block + SCALES_L, uint32(low))
    store(block + SCALES_H, uint16(high))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`: the best of some scales for every group and, of a block, for all of
    them."""
    fit, encode_groups = fitting(KVALUES), coding(KVALUES)
    make_tile = tile_word(32, 8)
    search = searching(fit, trying(fit, 32, ends(effort)), whole(-32, 31), 1, DIVISORS, 8, effort)

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        make_tile(x, importance, unit, scratch)
        d, k = search(scratch)
        encode_groups(scratch, d * k)
        for block in range(2):
            put_scales(d, k, 8 * block, y + SIZE * block)
            for group in range(8):
                store(y + SIZE * block + QS + 16 * group, nibbles_of(scratch, 8 * block + group))

    return by_tiles(32, 2 * SIZE, encode_tile)
