"""Q4_1: 32 weights in 20 bytes; a weight is d * code + m, the code of 4 bits."""

from typing import Any

import numpy as np

from quant.codes.nibbles import four_bits, pairs_of_halves, put_four_bits, runs_of
from quant.codes.words import Words
from quant.encoders.blocks32 import encoder_of

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 20

codes64, codes32, ordered = four_bits(BLOCK)
put32 = put_four_bits(BLOCK)
scales, mins, scale, least = pairs_of_halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(
    4, 32, SIZE, codes64, scales, mins, codes32, scale, least, order="halves", ordered=ordered, runs=runs_of(BLOCK)
)


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(BLOCK, 0, 4, put32, effort)
