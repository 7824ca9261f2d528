"""IQ4_NL: 32 weights in 18 bytes. A weight is d * KVALUES[q], where q has 4 bits."""

from typing import Any

import numpy as np

from quant.encoders.searches.scales import ideal_scales, make_try_scales, round_to_f16
from quant.encoders.searches.table import load_nibbles, make_encode_groups, make_fit, target_codes
from quant.encoders.searches.tiles import TRIALS, make_build_tile, make_encode_by_tiles
from quant.jit.vectors import extract, inline, store, store_half
from quant.packing.format_spec import FormatSpec
from quant.packing.nibbles import make_half_scales, make_store_4bit, make_table_codes, nibble_layout

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

# A nonlinear codebook: the steps are small near zero, where most weights are.
KVALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
ZERO_POINT = 128
CODES = [value + ZERO_POINT for value in KVALUES]

codes64, codes32, ordered = make_table_codes(BLOCK, CODES)
store_codes32 = make_store_4bit(BLOCK)
scales, scale = make_half_scales(BLOCK)
SIZE = 8 * BLOCK.itemsize
SPEC = FormatSpec(
    bits=8,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    codes32=codes32,
    group_scale=scale,
    zero_point=ZERO_POINT,
    order="halves",
    ordered_codes=ordered,
    table=KVALUES,
    code_layout=nibble_layout(BLOCK, CODES),
)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`.

    It tries several scales for each block and keeps the best.
    """
    fit, encode_groups, size = make_fit(KVALUES), make_encode_groups(KVALUES), BLOCK.itemsize
    try_scales = make_try_scales(fit, 32, target_codes(effort))
    make_tile = make_build_tile(32, 1)

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        make_tile(x, importance, unit, scratch)
        count = try_scales(scratch, scratch + TRIALS)
        d = round_to_f16(ideal_scales(scratch + TRIALS, count))
        encode_groups(scratch, d)
        for block in range(16):
            store_half(y + size * block, extract(d, block))
            store(y + size * block + 2, load_nibbles(scratch, block))

    return make_encode_by_tiles(32, 16 * size, encode_tile)
