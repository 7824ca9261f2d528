"""IQ4_KS: a row begins with a float32 d, then every 256 weights have 136 bytes. A weight is d * scale *
(TABLE[q] + shift), where q has 4 bits and the scale is an odd number from -127 to 127.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np

from quant.encoders.searches.scales import make_odd_multiple
from quant.encoders.searches.shifted_rows import ODD_DIVISORS, make_encode_shifted_rows
from quant.formats.iq4_k import TABLE
from quant.jit.vectors import inline, store
from quant.packing.bit_planes import make_nibbles_in_halves, make_store_nibbles_in_halves
from quant.packing.nibbles import make_nibbles_of_groups
from quant.packing.shifted_rows import bytes_in_front, make_odd_scales, make_row_spec, odd_scale_bytes

BLOCK = np.dtype([("scales", "u1", 8), ("qs", "u1", 128)])
assert BLOCK.itemsize == 136
QS, SIZE, HEADER = 8, 136, 4

# scales:  the lowest bit of byte g says whether group g has the shift, the others times two are its scale plus 127
# qs:      byte 16k + i holds column 32k + i in its low nibble and column 32k + 16 + i in its high one
scales, group_bits = make_odd_scales(bytes_in_front)
store_indices = make_store_nibbles_in_halves(QS)

SPEC = make_row_spec(
    TABLE, SIZE, HEADER, scales, group_bits, make_nibbles_of_groups(QS), make_nibbles_in_halves(QS), "halves"
)  # fmt: skip

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(block: int, k: Any, first: int, shifted: int, indices: int) -> None:
    """Store the scales of eight lanes, the bits of their groups, and 256 table indices, one byte each."""
    store(block, odd_scale_bytes(k, first, shifted))
    store_indices(block, indices)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode_shifted_rows(SPEC, TABLE, make_odd_multiple(-127, 127), ODD_DIVISORS, 2, store_block, effort)
