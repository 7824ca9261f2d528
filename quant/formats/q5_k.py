"""Q5_K: 256 weights in 176 bytes; a weight is d * scale * code - dmin * min, as in Q4_K, but the code has 5 bits."""

from typing import Any

import numpy as np

from quant.codes.planes import evens_of_bits, evens_of_nibbles, planes, put_nibble_pairs, put_planes
from quant.codes.words import Field, Runs, Words
from quant.encoders.affine_superblocks import encoder_of
from quant.formats import q4_k
from quant.jit.vectors import inline, load, u8x32

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
assert BLOCK.itemsize == 176
QH, QS, SIZE = 16, 48, 176

# qs:  byte 32j + i holds the low bits of column 64j + i in its low nibble, those of column 64j + 32 + i in its high one
# qh:  bit k of byte i is the fifth bit of column 32k + i
low_bits, fifth_bit = planes(4), planes(1, at=4)
low_evens, fifth_evens = evens_of_nibbles(QS), evens_of_bits(QH, 4)
put_low_bits, put_fifth_bits = put_nibble_pairs(QS), put_planes(1, 4)


@inline
def codes64(block: int, j: int) -> Any:
    return low_bits(load(u8x32, block + QS + 32 * j), 0) | fifth_bit(load(u8x32, block + QH), 2 * j)


@inline
def ordered(block: int, j: int) -> Any:
    return low_evens(block, j) | fifth_evens(block, j)


@inline
def put_codes(block: int, codes: int) -> None:
    """Write 256 codes, a byte each, under the scales that are there."""
    put_low_bits(block, codes)
    put_fifth_bits(block + QH, codes)


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(WORDS, 63, q4_k.put_scales, put_codes, effort)


SIXTEENS = [
    (Field(QS + 32 * (k // 2) + i, 4 * (k % 2)), Field(QH + i, k, bits=1, to=4)) for k in range(8) for i in (0, 16)
]
WORDS = Words(
    5, 32, SIZE, codes64, q4_k.scales, q4_k.mins, order="evens", ordered=ordered,
    runs=Runs(tuple(SIXTEENS), SIZE), multiples=q4_k.SIXES,
)  # fmt: skip
