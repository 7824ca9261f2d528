"""IQ3_KS: a row begins with a half precision d, then every 256 weights have 102 bytes. A weight is d * (scale - 16) *
(TABLE[q] + shift), where q has 3 bits and the scale 5.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import uint16

from quant.encoders.searches.scales import make_integer_multiple
from quant.encoders.searches.shifted_rows import FIVE_BIT_DIVISORS, make_encode_shifted_rows
from quant.formats.iq3_k import TABLE
from quant.jit.vectors import inline, load, store
from quant.packing.bit_planes import (
    make_2bit_codes,
    make_2bit_codes_in_pairs,
    make_bits,
    make_bits_in_pairs,
    make_joined,
    make_store_plane,
)
from quant.packing.shifted_rows import make_row_spec
from quant.packing.split_scales import make_split_scales

BLOCK = np.dtype([("extra", "<u2"), ("scales", "u1", 4), ("qs", "u1", 64), ("qh", "u1", 32)])
assert BLOCK.itemsize == 102
EXTRA, SCALES, QS, QH, SIZE, HEADER = 0, 2, 6, 70, 102, 2

# extra:   bit g is the high bit of scale g, bit 8 + g says whether group g has the shift
# scales:  byte g has the low bits of scale g in its low nibble, those of scale 4 + g in its high one
# qs:      byte 32h + i holds the low bits of columns 128h + (i, 32 + i, 64 + i, 96 + i), i < 32, the first lowest
# qh:      bit k of byte i is the third bit of column 32k + i
indices64 = make_joined(make_2bit_codes(QS), make_bits(QH, 2))
ordered = make_joined(make_2bit_codes_in_pairs(QS), make_bits_in_pairs(QH, 2))
store_low_bits, store_third_bits = make_store_plane(2, 0), make_store_plane(1, 2)
scales, store_scales = make_split_scales(SCALES, (0, 2, 4, 6, 1, 3, 5, 7), EXTRA, 1)


@inline
def group_bits(block: int) -> int:
    return load(uint16, block + EXTRA) >> uint16(8)


SPEC = make_row_spec(TABLE, SIZE, HEADER, scales, group_bits, indices64, ordered, "pairs")

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(block: int, k: Any, first: int, shifted: int, indices: int) -> None:
    """Store the scales of eight lanes, the bits of their groups, and 256 table indices, one byte each."""
    store(block + EXTRA, uint16(shifted << 8))
    store_scales(block, k, first)
    store_low_bits(block + QS, indices)
    store_low_bits(block + QS + 32, indices + 128)
    store_third_bits(block + QH, indices)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_integer_multiple(-16, 15)
    return make_encode_shifted_rows(SPEC, TABLE, multiple, FIVE_BIT_DIVISORS, 1, store_block, effort)
