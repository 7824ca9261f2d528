"""Q4_1: 32 weights in 20 bytes. A weight is d * code + m, where the code has 4 bits."""

from typing import Any

import numpy as np

from quant.encoders.blocks32 import make_encode
from quant.packing.format_spec import FormatSpec
from quant.packing.nibbles import make_4bit_codes, make_half_scales_and_mins, make_store_4bit, nibble_layout

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 20

codes64, codes32, ordered = make_4bit_codes(BLOCK)
store_codes32 = make_store_4bit(BLOCK)
scales, mins, group_scale, group_min = make_half_scales_and_mins(BLOCK)
SIZE = 8 * BLOCK.itemsize
SPEC = FormatSpec(
    bits=4,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    mins=mins,
    codes32=codes32,
    group_scale=group_scale,
    group_min=group_min,
    order="halves",
    ordered_codes=ordered,
    code_layout=nibble_layout(BLOCK),
)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(BLOCK, 0, 4, store_codes32, effort)
