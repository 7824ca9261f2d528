"""Q5_1: 32 weights in 24 bytes; a weight is d * code + m, the code of 5 bits."""

from typing import Any

import numpy as np

from quant.codes.nibbles import five_bits, pairs_of_halves, put_five_bits, runs_of
from quant.codes.words import Words
from quant.encoders.blocks32 import encoder_of

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 24

codes64, codes32, ordered = five_bits(BLOCK)
put32 = put_five_bits(BLOCK)
scales, mins, scale, least = pairs_of_halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(
    5, 32, SIZE, codes64, scales, mins, codes32, scale, least, order="halves", ordered=ordered,
    runs=runs_of(BLOCK),
)  # fmt: skip


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(BLOCK, 0, 5, put32, effort)
