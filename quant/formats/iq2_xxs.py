"""IQ2_XXS: 256 weights in 66 bytes; a weight is d / 4 * (0.5 + scale) * number, eight numbers from a codebook.

The scale has 4 bits, a number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint32

from quant.codes.codebooks import codebook, four_signs, look_up, with_signs
from quant.codes.words import Words
from quant.encoders.lattice_groups import encoding, row_ends, rows_word, scale_at, signs_at
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x8,
    half,
    inline,
    join,
    lanes,
    load,
    splat,
    store,
    store_half,
    u32x8,
    u32x16,
    u64x4,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", [("entries", "u1", 4), ("signs", "<u4")], 8)])
assert BLOCK.itemsize == 66
D, QS, SIZE = 0, 2, 66

# signs: of the eight columns of each entry seven bits, the first in the lowest; on top of them the scale
ZERO = 64
entries = look_up(ZERO + codebook("iq2_xxs"), bits=8)
odds = lanes(range(1, 16, 2))


@inline
def signs(block: int) -> Any:
    return odds(load(u32x16, block + QS))


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 16 * j
    codes = join(entries(load(uint32, at)), entries(load(uint32, at + 8)))
    return with_signs(codes, ZERO, extract(bitcast(u64x4, four_signs(signs(block))), int64(j)))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x8, signs(block) >> splat(u32x8, uint32(28)))
    return (scale + splat(f32x8, float32(0.5))) * splat(f32x8, half(block + D) * float32(0.25))


WORDS = Words(7, 32, SIZE, codes64, scales, zero=ZERO)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(codebook("iq2_xxs").view(np.uint8), 1 / 8)
row_at = rows_word(LATTICE)


@inline
def put_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """A block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        group, place = first + i, block + QS + 8 * i
        packed = scale_at(k, group) << uint32(28)
        for eight in range(4):
            store(place + eight, uint8(row_at(scratch, group, eight)))
            packed |= (signs_at(scratch, group, eight) & uint32(127)) << uint32(7 * eight)
        store(place + 4, uint32(packed))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    return encoding(LATTICE, 32, True, row_ends(3.75, 9.0, effort), SIZE, put_block, effort)
