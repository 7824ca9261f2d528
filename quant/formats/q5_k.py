"""Q5_K: 256 weights in 176 bytes. A weight is d * scale * code - dmin * min as in Q4_K, but the code has 5 bits."""

from typing import Any

import numpy as np

from quant.encoders.affine_superblocks import make_encode
from quant.formats import q4_k
from quant.jit.cpu import target
from quant.jit.vectors import inline
from quant.packing.bit_planes import (
    make_5bit_evens_by_insertion,
    make_bits,
    make_bits_in_evens,
    make_joined,
    make_nibbles,
    make_nibbles_in_evens,
    make_store_nibble_pairs,
    make_store_plane,
)
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
assert BLOCK.itemsize == 176
QH, QS, SIZE = 16, 48, 176

# qs:  byte 32j + i holds the low bits of column 64j + i in its low nibble, those of column 64j + 32 + i in its high one
# qh:  bit k of byte i is the fifth bit of column 32k + i
codes64 = make_joined(make_nibbles(QS), make_bits(QH, 4))
ordered = make_joined(make_nibbles_in_evens(QS), make_bits_in_evens(QH, 4))
store_low_bits, store_fifth_bits = make_store_nibble_pairs(QS), make_store_plane(1, 4)


@inline
def store_codes(block: int, codes: int) -> None:
    """Store 256 codes, one byte each, and leave the scales as they are."""
    store_low_bits(block, codes)
    store_fifth_bits(block + QH, codes)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(SPEC, 63, q4_k.store_scales, store_codes, effort)


CODE_FIELDS = [
    (BitField(QS + 32 * (k // 2) + i, 4 * (k % 2)), BitField(QH + i, k, bits=1, target_bit=4))
    for k in range(8)
    for i in (0, 16)
]
SPEC = FormatSpec(
    bits=5,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=q4_k.SPEC.scales,
    mins=q4_k.SPEC.mins,
    order="evens",
    ordered_codes=make_5bit_evens_by_insertion(QS, QH) if target().has_shift_insert else ordered,
    code_layout=CodeLayout(tuple(CODE_FIELDS), SIZE),
    scale_layouts=q4_k.SCALE_LAYOUTS,
)
