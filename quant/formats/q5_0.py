"""Q5_0: 32 weights in 22 bytes; a weight is d * (code - 16), the code of 5 bits."""

from typing import Any

import numpy as np

from quant.codes.nibbles import five_bits, halves, put_five_bits, runs_of
from quant.codes.words import Words
from quant.encoders.blocks32 import encoder_of

BLOCK = np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 22

codes64, codes32, ordered = five_bits(BLOCK)
put32 = put_five_bits(BLOCK)
scales, scale = halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(
    5, 32, SIZE, codes64, scales, codes32=codes32, scale=scale, zero=16, order="halves", ordered=ordered,
    runs=runs_of(BLOCK),
)  # fmt: skip


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(BLOCK, 16, 5, put32, effort)
