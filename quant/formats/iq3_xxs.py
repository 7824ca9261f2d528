"""IQ3_XXS: 256 weights in 98 bytes; a weight is d / 2 * (0.5 + scale) * number, four numbers from a codebook.

The scale has 4 bits, a number is one of 4, 12, 20, 28, 36, 44, 52 and 62, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint32, uint64

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
    load,
    splat,
    store,
    store_half,
    u32x8,
    u64x4,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
assert BLOCK.itemsize == 98
D, QS, SIGNS, SIZE = 0, 2, 66, 98

# signs: of every eight columns seven bits, the first in the lowest; on top of them the scale
ZERO = 64
entries = look_up(ZERO + codebook("iq3_xxs"), bits=8)


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 16 * j
    codes = join(entries(load(uint64, at)), entries(load(uint64, at + 8)))
    return with_signs(codes, ZERO, extract(bitcast(u64x4, four_signs(load(u32x8, block + SIGNS))), int64(j)))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x8, load(u32x8, block + SIGNS) >> splat(u32x8, uint32(28)))
    return (scale + splat(f32x8, float32(0.5))) * splat(f32x8, half(block + D) * float32(0.5))


WORDS = Words(7, 32, SIZE, codes64, scales, zero=ZERO)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(codebook("iq3_xxs").view(np.uint8), 1 / 4)
row_at = rows_word(LATTICE)


@inline
def put_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """A block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        group = first + i
        packed = scale_at(k, group) << uint32(28)
        for eight in range(4):
            packed |= (signs_at(scratch, group, eight) & uint32(127)) << uint32(7 * eight)
        for row in range(8):
            store(block + QS + 8 * i + row, uint8(row_at(scratch, group, row)))
        store(block + SIGNS + 4 * i, uint32(packed))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    return encoding(LATTICE, 32, True, row_ends(8.5, 20.0, effort), SIZE, put_block, effort)
