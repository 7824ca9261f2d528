"""IQ2_S: 256 weights in 82 bytes; a weight is d / 4 * (0.5 + scale) * number, eight numbers from a codebook.

The scale has 4 bits, a number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, uint8, uint32, uint64

from quant.codes.codebooks import codebook, look_up_in_pieces, nibbles, with_signs
from quant.codes.words import Words
from quant.encoders.lattice_groups import encoding, put_nibbles, row_ends, rows_word, signs_at
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import (
    convert,
    f32x16,
    half,
    inline,
    join,
    load,
    splat,
    store,
    store_half,
    u8x8,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])
assert BLOCK.itemsize == 82
D, QS, SIGNS, QH, SCALES, SIZE = 0, 2, 34, 66, 74, 82

# Byte i of qs and two bits of byte i // 4 of qh, the first in the lowest, say which row of the codebook;
# byte i of signs has a bit for each of its columns.
ZERO = 64
entries = look_up_in_pieces(ZERO + codebook("iq2_s"), bits=2)


@inline
def codes64(block: int, j: int) -> Any:
    low, high = block + QS + 8 * j, block + QH + 2 * j
    first = entries(load(uint32, low), load(uint8, high))
    codes = join(first, entries(load(uint32, low + 4), load(uint8, high + 1)))
    return with_signs(codes, ZERO, load(uint64, block + SIGNS + 8 * j))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x16, nibbles(load(u8x8, block + SCALES)))
    return (scale + splat(f32x16, float32(0.5))) * splat(f32x16, half(block + D) * float32(0.25))


WORDS = Words(7, 16, SIZE, codes64, scales, zero=ZERO)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(codebook("iq2_s").view(np.uint8), 1 / 8)
row_at = rows_word(LATTICE)


@inline
def put_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """A block from its sixteen groups."""
    store_half(block + D, d)
    put_nibbles(k, first, 16, block + SCALES)
    for four in range(8):
        high = uint32(0)
        for i in range(4):
            group, eight, row = 2 * four + i // 2, i % 2, 4 * four + i
            number = row_at(scratch, group, eight)
            store(block + QS + row, uint8(number))
            store(block + SIGNS + row, uint8(signs_at(scratch, group, eight)))
            high |= (number >> uint32(8)) << uint32(2 * i)
        store(block + QH + four, uint8(high))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    return encoding(LATTICE, 16, False, row_ends(3.75, 9.0, effort), SIZE, put_block, effort)
