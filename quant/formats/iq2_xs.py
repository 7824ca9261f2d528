"""IQ2_XS: 256 weights in 74 bytes; a weight is d / 4 * (0.5 + scale) * number, eight numbers from a codebook.

The scale has 4 bits, a number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint16, uint32, uint64

from quant.codes.codebooks import codebook, even_signs, look_up, nibbles, with_signs
from quant.codes.words import Words
from quant.encoders.lattice_groups import encoding, put_nibbles, row_ends, rows_word, signs_at
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x16,
    half,
    inline,
    join,
    load,
    splat,
    store,
    store_half,
    u8x8,
    u8x32,
    u16x32,
    u64x4,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
assert BLOCK.itemsize == 74
D, QS, SCALES, SIZE = 0, 2, 66, 74

# qs:  nine bits say which row of the codebook, seven the signs of its columns, the first in the lowest
ZERO = 64
entries = look_up(ZERO + codebook("iq2_xs"), bits=16)


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 16 * j
    codes = join(entries(load(uint64, at)), entries(load(uint64, at + 8)))
    sevens = convert(u8x32, load(u16x32, block + QS) >> splat(u16x32, uint16(9)))
    return with_signs(codes, ZERO, extract(bitcast(u64x4, even_signs(sevens)), int64(j)))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x16, nibbles(load(u8x8, block + SCALES)))
    return (scale + splat(f32x16, float32(0.5))) * splat(f32x16, half(block + D) * float32(0.25))


WORDS = Words(7, 16, SIZE, codes64, scales, zero=ZERO)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(codebook("iq2_xs").view(np.uint8), 1 / 8)
row_at = rows_word(LATTICE)


@inline
def put_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """A block from its sixteen groups."""
    store_half(block + D, d)
    put_nibbles(k, first, 16, block + SCALES)
    for row in range(32):
        signs = signs_at(scratch, row // 2, row % 2) & uint32(127)
        store(block + QS + 2 * row, uint16(row_at(scratch, row // 2, row % 2) | (signs << uint32(9))))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    return encoding(LATTICE, 16, True, row_ends(3.75, 9.0, effort), SIZE, put_block, effort)
