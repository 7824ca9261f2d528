"""IQ2_KS: a row begins with a half precision d, then every 256 weights have 70 bytes. A weight is d * (scale - 16) *
(TABLE[q] + shift), where q has 2 bits and the scale 5.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import uint16

from quant.encoders.searches.scales import make_integer_multiple
from quant.encoders.searches.shifted_rows import FIVE_BIT_DIVISORS, make_encode_shifted_rows
from quant.formats.iq2_k import TABLE
from quant.jit.vectors import inline, load, store
from quant.packing.bit_planes import make_2bit_codes, make_2bit_codes_in_pairs, make_store_plane
from quant.packing.shifted_rows import make_row_spec
from quant.packing.split_scales import make_split_scales

BLOCK = np.dtype([("extra", "<u2"), ("scales", "u1", 4), ("qs", "u1", 64)])
assert BLOCK.itemsize == 70
EXTRA, SCALES, QS, SIZE, HEADER = 0, 2, 6, 70, 2

# extra:   bit g says whether group g has the shift, bit 8 + g is the high bit of its scale
# scales:  nibble g, the low one of a byte first, has the low bits of scale g
# qs:      byte 32h + i holds columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first in the lowest bits
store_plane = make_store_plane(2, 0)
scales, store_scales = make_split_scales(SCALES, range(8), EXTRA, 1, first_bit=8)


@inline
def group_bits(block: int) -> int:
    return load(uint16, block + EXTRA)


SPEC = make_row_spec(
    TABLE, SIZE, HEADER, scales, group_bits, make_2bit_codes(QS), make_2bit_codes_in_pairs(QS), "pairs"
)  # fmt: skip

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(block: int, k: Any, first: int, shifted: int, indices: int) -> None:
    """Store the scales of eight lanes, the bits of their groups, and 256 table indices, one byte each."""
    store(block + EXTRA, uint16(shifted))
    store_scales(block, k, first)
    store_plane(block + QS, indices)
    store_plane(block + QS + 32, indices + 128)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_integer_multiple(-16, 15)
    return make_encode_shifted_rows(SPEC, TABLE, multiple, FIVE_BIT_DIVISORS, 1, store_block, effort)
