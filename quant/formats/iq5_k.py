"""IQ5_K: 256 weights in 176 bytes. A weight is d * (scale - 32) * (TABLE[q] + shift), where q has 5 bits and the scale
6.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np

from quant.encoders.searches.scales import make_integer_multiple
from quant.encoders.searches.shifted_table import make_encode_shifted
from quant.formats import iq4_k
from quant.jit.vectors import inline
from quant.packing.bit_planes import make_bits, make_joined, make_nibbles, make_store_nibble_pairs, make_store_plane
from quant.packing.shifted_table import ShiftedTable, make_shifted_spec

BLOCK = np.dtype(
    [("d", "<f2"), ("extra", "<u2"), ("scales_h", "u1", 4), ("scales_l", "u1", 8), ("qs", "u1", 128), ("qh", "u1", 32)]
)
assert BLOCK.itemsize == 176
QS, QH, SIZE = 16, 144, 176

# qs:  byte 32j + i holds the low bits of column 64j + i in its low nibble, those of column 64j + 32 + i in its high one
# qh:  bit k of byte i is the fifth bit of column 32k + i
NUMBERS = (
    *(-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6),
    *(-1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121),
)
TABLE = ShiftedTable(NUMBERS, shift=2, zero_point=128)
indices64 = make_joined(make_nibbles(QS), make_bits(QH, 4))
store_low_bits, store_fifth_bits = make_store_nibble_pairs(QS), make_store_plane(1, 4)


SPEC = make_shifted_spec(TABLE, SIZE, indices64, iq4_k.scales)

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_indices(block: int, indices: int) -> None:
    """Store 256 table indices, one byte each."""
    store_low_bits(block, indices)
    store_fifth_bits(block + QH, indices)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple = make_integer_multiple(-32, 31)
    return make_encode_shifted(SPEC, TABLE, multiple, iq4_k.DIVISORS, 1, iq4_k.store_scales, store_indices, effort)
