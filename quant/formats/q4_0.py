"""Q4_0: 32 weights in 18 bytes; a weight is d * (code - 8), the code of 4 bits."""

from typing import Any

import numpy as np

from quant.codes.nibbles import four_bits, halves, put_four_bits, runs_of
from quant.codes.words import Words
from quant.encoders.blocks32 import encoder_of

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

codes64, codes32, ordered = four_bits(BLOCK)
put32 = put_four_bits(BLOCK)
scales, scale = halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(
    *(4, 32, SIZE, codes64, scales),
    codes32=codes32,
    scale=scale,
    zero=8,
    order="halves",
    ordered=ordered,
    runs=runs_of(BLOCK),
)


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`."""
    return encoder_of(BLOCK, 8, 4, put32, effort)
