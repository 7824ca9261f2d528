"""Q5_1: 32 weights in 24 bytes; a weight is d * code + m, the code of 5 bits."""

import numpy as np

from quant.nibbles import five_bits, pairs_of_halves
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 24

codes64, codes32, ordered = five_bits(BLOCK)
scales, mins, scale, least = pairs_of_halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(5, 32, SIZE, codes64, scales, mins, codes32, scale, least, order="halves", ordered=ordered)
