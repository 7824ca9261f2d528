"""IQ4_NL: 32 weights in 18 bytes; a weight is d * KVALUES[q], q of 4 bits."""

from typing import Any

import numpy as np

from quant.codes.nibbles import from_table, halves, put_four_bits, runs_of
from quant.codes.words import Words
from quant.encoders.searches.scales import as_half, ideal_scales, trying
from quant.encoders.searches.table import coding, ends, fitting, nibbles_of
from quant.encoders.searches.tiles import TRIALS, by_tiles, tile_word
from quant.jit.vectors import extract, inline, store, store_half

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

# Where 4 bits lose least: close to zero, most weights, the steps are small.
KVALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
ZERO = 128
CODES = [value + ZERO for value in KVALUES]

codes64, codes32, ordered = from_table(BLOCK, CODES)
put32 = put_four_bits(BLOCK)
scales, scale = halves(BLOCK)
SIZE = 8 * BLOCK.itemsize
WORDS = Words(
    *(8, 32, SIZE, codes64, scales),
    codes32=codes32, scale=scale, zero=ZERO, order="halves", ordered=ordered, table=KVALUES, runs=runs_of(BLOCK, CODES),
)  # fmt: skip


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`: the best of some scales for every block by itself."""
    fit, encode_groups, size = fitting(KVALUES), coding(KVALUES), BLOCK.itemsize
    try_scales = trying(fit, 32, ends(effort))
    make_tile = tile_word(32, 1)

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        make_tile(x, importance, unit, scratch)
        count = try_scales(scratch, scratch + TRIALS)
        d = as_half(ideal_scales(scratch + TRIALS, count))
        encode_groups(scratch, d)
        for block in range(16):
            store_half(y + size * block, extract(d, block))
            store(y + size * block + 2, nibbles_of(scratch, block))

    return by_tiles(32, 16 * size, encode_tile)
