"""IQ4_NL: 32 weights in 18 bytes; a weight is d * KVALUES[q], q of 4 bits."""

import numpy as np

from quant.nibbles import from_table, halves
from quant.words import Words

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

# Where 4 bits lose least: close to zero, most weights, the steps are small.
KVALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
ZERO = 128
CODES = [value + ZERO for value in KVALUES]

codes64, codes32, ordered = from_table(BLOCK, CODES)
scales, scale = halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(8, 32, SIZE, codes64, scales, codes32=codes32, scale=scale, zero=ZERO, order="halves", ordered=ordered)
