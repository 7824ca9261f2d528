"""IQ3_S: 256 weights in 110 bytes; a weight is d * (1 + 2 * scale) * number, four numbers from a codebook.

The scale has 4 bits, a number is odd and at most 15, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint16, uint32, uint64

from quant.codes.codebooks import codebook, look_up, nibbles, with_signs
from quant.codes.words import Words
from quant.encoders.lattice_groups import encoding, put_nibbles, row_ends, rows_word, signs_at
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x8,
    half,
    inline,
    join,
    lanes_of_bits,
    load,
    select,
    splat,
    store,
    store_half,
    u8x4,
    u8x16,
    u16x16,
    u64x4,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
assert BLOCK.itemsize == 110
D, QS, QH, SIGNS, SCALES, SIZE = 0, 2, 66, 74, 106, 110

# Byte i of qs and bit i of qh say which row of the codebook; signs has a bit for each column.
ZERO = 16
entries = look_up(ZERO + codebook("iq3_s"), bits=16)


@inline
def rows(block: int, j: int) -> Any:
    """The numbers of sixteen rows of the codebook, four in a lane."""
    high = lanes_of_bits(load(uint16, block + QH + 2 * j))
    ninths = select(high, splat(u16x16, uint16(256)), splat(u16x16, uint16(0)))
    return bitcast(u64x4, convert(u16x16, load(u8x16, block + QS + 16 * j)) | ninths)


@inline
def codes64(block: int, j: int) -> Any:
    numbers = rows(block, j)
    low = join(entries(extract(numbers, int64(0))), entries(extract(numbers, int64(1))))
    high = join(entries(extract(numbers, int64(2))), entries(extract(numbers, int64(3))))
    return with_signs(join(low, high), ZERO, load(uint64, block + SIGNS + 8 * j))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x8, nibbles(bitcast(u8x4, load(uint32, block + SCALES))))
    return (scale + scale + splat(f32x8, float32(1.0))) * splat(f32x8, half(block + D))


WORDS = Words(5, 32, SIZE, codes64, scales, zero=ZERO)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(codebook("iq3_s").view(np.uint8))
row_at = rows_word(LATTICE)


@inline
def put_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """A block from its eight groups."""
    store_half(block + D, d)
    put_nibbles(k, first, 8, block + SCALES)
    for i in range(8):
        high = uint32(0)
        for row in range(8):
            number = row_at(scratch, first + i, row)
            store(block + QS + 8 * i + row, uint8(number))
            high |= (number >> uint32(8)) << uint32(row)
        store(block + QH + i, uint8(high))
        for eight in range(4):
            store(block + SIGNS + 4 * i + eight, uint8(signs_at(scratch, first + i, eight)))


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    return encoding(LATTICE, 32, False, row_ends(10.0, 18.5, effort), SIZE, put_block, effort)
