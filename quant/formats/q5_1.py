"""Q5_1: 32 weights in 24 bytes. A weight is d * code + m, where the code has 5 bits."""

from typing import Any

import numpy as np

from quant.encoders.blocks32 import make_encode
from quant.packing.nibbles import make_nibble_spec, make_store_codes32

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 24

SPEC = make_nibble_spec(BLOCK, bits=5, zero_point=0)
store_codes32 = make_store_codes32(BLOCK)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, BLOCK, store_codes32, effort)
