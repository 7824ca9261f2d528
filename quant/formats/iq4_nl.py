"""IQ4_NL: 32 weights in 18 bytes. A weight is d * KVALUES[q], where q has 4 bits."""

from typing import Any

import numpy as np

from quant.encoders.searches.scales import ideal_scales, make_try_scales, round_to_f16
from quant.encoders.searches.table import load_nibbles, make_encode_groups, make_fit, target_codes
from quant.encoders.searches.tiles import TRIALS, make_build_tile, make_encode_by_tiles
from quant.jit.vectors import extract, inline, store, store_half
from quant.packing.iq4_codebook import KVALUES, ZERO_POINT
from quant.packing.nibbles import make_nibble_spec, make_store_codes32

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18

SPEC = make_nibble_spec(BLOCK, bits=8, zero_point=ZERO_POINT, table=KVALUES)
store_codes32 = make_store_codes32(BLOCK)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`.

    It tries several scales for each block and takes the best.
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
