"""Q4_0: 32 weights in 18 bytes. A weight is d * (code - 8), where the code has 4 bits."""

from typing import Any

import numpy as np

from quant.encoders.blocks32 import make_encode
from quant.packing.format_spec import FormatSpec
from quant.packing.nibbles import make_4bit_codes, make_half_scales, make_store_4bit, nibble_layout

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

codes64, codes32, ordered = make_4bit_codes(BLOCK)
store_codes32 = make_store_4bit(BLOCK)
scales, scale = make_half_scales(BLOCK)
SIZE = 8 * BLOCK.itemsize
SPEC = FormatSpec(
    bits=4,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    codes32=codes32,
    group_scale=scale,
    zero_point=8,
    order="halves",
    ordered_codes=ordered,
    code_layout=nibble_layout(BLOCK),
)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(BLOCK, 8, 4, store_codes32, effort)
