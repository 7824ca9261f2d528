"""Q5_K: 256 weights in 176 bytes; a weight is d * scale * code - dmin * min, as in Q4_K, but the code has 5 bits."""

from typing import Any

import numpy as np

from quant import q4_k
from quant.planes import nibble_pairs, planes
from quant.vectors import inline, load, u8x32
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
assert BLOCK.itemsize == 176
QH, QS, SIZE = 16, 48, 176

# qs:  byte 32j + i holds the low bits of column 64j + i in its low nibble, those of column 64j + 32 + i in its high one
# qh:  bit k of byte i is the fifth bit of column 32k + i
low_bits, fifth_bit, fifth_bit_of_pair = planes(4), planes(1, at=4), planes(1, at=4, apart=2)
low_pairs = nibble_pairs(QS)


@inline
def codes64(block: int, j: int) -> Any:
    return low_bits(load(u8x32, block + QS + 32 * j), 0) | fifth_bit(load(u8x32, block + QH), 2 * j)


@inline
def ordered(block: int, j: int) -> Any:
    return low_pairs(block, j) | fifth_bit_of_pair(load(u8x32, block + QH), 4 * (j // 2) + j % 2)


WORDS = Words(5, 32, SIZE, codes64, q4_k.scales, q4_k.mins, order="pairs", ordered=ordered)
