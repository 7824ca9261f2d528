"""IQ5_KS: a row begins with a float32 d, then every 256 weights have 168 bytes. A weight is d * scale *
(TABLE[q] + shift), where q has 5 bits and the scale is an odd number from -127 to 127.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np

from quant.encoders.searches.scales import make_odd_multiple
from quant.encoders.searches.shifted_rows import ODD_DIVISORS, make_encode_shifted_rows
from quant.formats.iq5_k import TABLE
from quant.jit.vectors import inline, store
from quant.packing.bit_planes import (
    make_bits,
    make_bits_in_evens,
    make_joined,
    make_nibbles,
    make_nibbles_in_evens,
    make_store_nibble_pairs,
    make_store_plane,
)
from quant.packing.shifted_rows import bytes_in_front, make_odd_scales, make_row_spec, odd_scale_bytes

BLOCK = np.dtype([("scales", "u1", 8), ("qs", "u1", 128), ("qh", "u1", 32)])
assert BLOCK.itemsize == 168
QS, QH, SIZE, HEADER = 8, 136, 168, 4

# scales:  the lowest bit of byte g says whether group g has the shift, the others times two are its scale plus 127
# qs:      byte 32j + i holds the low bits of column 64j + i in its low nibble, of column 64j + 32 + i in its high one
# qh:      bit k of byte i is the fifth bit of column 32k + i
scales, group_bits = make_odd_scales(bytes_in_front)
indices64 = make_joined(make_nibbles(QS), make_bits(QH, 4))
ordered = make_joined(make_nibbles_in_evens(QS), make_bits_in_evens(QH, 4))
store_low_bits, store_fifth_bits = make_store_nibble_pairs(QS), make_store_plane(1, 4)


SPEC = make_row_spec(TABLE, SIZE, HEADER, scales, group_bits, indices64, ordered, "evens")

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(block: int, k: Any, first: int, shifted: int, indices: int) -> None:
    """Store the scales of eight lanes, the bits of their groups, and 256 table indices, one byte each."""
    store(block, odd_scale_bytes(k, first, shifted))
    store_low_bits(block, indices)
    store_fifth_bits(block + QH, indices)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode_shifted_rows(SPEC, TABLE, make_odd_multiple(-127, 127), ODD_DIVISORS, 2, store_block, effort)
