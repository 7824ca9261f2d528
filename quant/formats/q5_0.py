"""Q5_0: 32 weights in 22 bytes. A weight is d * (code - 16), where the code has 5 bits."""

from typing import Any

import numpy as np

from quant.encoders.blocks32 import make_encode
from quant.packing.format_spec import FormatSpec
from quant.packing.nibbles import make_5bit_codes, make_half_scales, make_store_5bit, nibble_layout

BLOCK = np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 22

codes64, codes32, ordered = make_5bit_codes(BLOCK)
store_codes32 = make_store_5bit(BLOCK)
scales, scale = make_half_scales(BLOCK)
SIZE = 8 * BLOCK.itemsize
SPEC = FormatSpec(
    bits=5,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    codes32=codes32,
    group_scale=scale,
    zero_point=16,
    order="halves",
    ordered_codes=ordered,
    code_layout=nibble_layout(BLOCK),
)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(BLOCK, 16, 5, store_codes32, effort)
