"""Q4_K: 256 weights in 144 bytes; a weight is d * scale * code - dmin * min, code of 4 bits, scale and min of 6."""

from typing import Any

import numpy as np
from numba import uint32, uint64

from quant.codes.planes import evens_of_nibbles, planes, put_nibble_pairs
from quant.codes.words import Field, Multiples, Runs, Words
from quant.encoders.affine_superblocks import encoder_of
from quant.encoders.encoding import put_scale
from quant.jit.vectors import (
    bitcast,
    convert,
    f16x8,
    f32x8,
    inline,
    lanes,
    load,
    negative,
    store,
    u8x8,
    u8x32,
)

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
assert BLOCK.itemsize == 144
D, DMIN, SCALES, QS, SIZE = 0, 2, 4, 16, 144

# qs:  byte 32j + i holds column 64j + i in its low nibble and column 64j + 32 + i in its high one
# scales: the scales and mins of groups 0-3 whole, those of groups 4-7 in two pieces
#   0-3   EEAAAAAA   A: scale 0-3    E: the two high bits of scale 4-7
#   4-7   eeaaaaaa   a: min 0-3      e: the two high bits of min 4-7
#   8-11  ffffFFFF   F: the four low bits of scale 4-7    f: those of min 4-7
SIX, FOUR, TWO, TOP = uint32(0x3F3F3F3F), uint32(0x0F0F0F0F), uint32(0x03030303), uint32(0x30303030)
first, second = lanes([0] * 8), lanes([1] * 8)
nibbles, put_codes = planes(4), put_nibble_pairs(QS)


@inline
def sixes(whole: int, low: int) -> Any:
    """Eight numbers of 6 bits: four that are whole, and four from their low bits and the top bits of `whole`."""
    first = whole & SIX
    second = (low & FOUR) | (((whole >> uint32(6)) & TWO) << uint32(4))
    return bitcast(u8x8, uint64(first) | (uint64(second) << uint64(32)))


@inline
def codes64(block: int, j: int) -> Any:
    return nibbles(load(u8x32, block + QS + 32 * j), 0)


@inline
def d_and_dmin(block: int) -> Any:
    """Both, before six lanes of no meaning: what lies behind them is converted with them."""
    return convert(f32x8, load(f16x8, block + D))


@inline
def scales(block: int) -> Any:
    packed = sixes(load(uint32, block + SCALES), load(uint32, block + SCALES + 8))
    return convert(f32x8, packed) * first(d_and_dmin(block))


@inline
def mins(block: int) -> Any:
    packed = sixes(load(uint32, block + SCALES + 4), load(uint32, block + SCALES + 8) >> uint32(4))
    return convert(f32x8, packed) * negative(second(d_and_dmin(block)))


@inline
def put_scales(block: int, d: float, dmin: float, scales: int, mins: int) -> None:
    """Write d and dmin, and eight scales and mins, a byte each below 64, as the picture above has them."""
    put_scale(block + D, d)
    put_scale(block + DMIN, dmin)
    a, e = load(uint32, scales), load(uint32, scales + 4)
    b, f = load(uint32, mins), load(uint32, mins + 4)
    store(block + SCALES, uint32(a | ((e & TOP) << uint32(2))))
    store(block + SCALES + 4, uint32(b | ((f & TOP) << uint32(2))))
    store(block + SCALES + 8, uint32((e & FOUR) | ((f & FOUR) << uint32(4))))


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(WORDS, 63, put_scales, put_codes, effort)


A, E = Field(SCALES, bits=6), Field(SCALES, 6, bits=2, to=4)
B, F = Field(SCALES + 4, bits=6), Field(SCALES + 4, 6, bits=2, to=4)
SIXES = (
    Multiples(((A,), (Field(SCALES + 8), E)), D),
    Multiples(((B,), (Field(SCALES + 8, 4), F)), DMIN, negative=True),
)
WORDS = Words(
    4, 32, SIZE, codes64, scales, mins, order="evens", ordered=evens_of_nibbles(QS),
    runs=Runs(tuple((Field(QS + 16 * (i % 2), i // 2 * 4),) for i in range(4)), 32), multiples=SIXES,
)  # fmt: skip
