"""IQ2_XS: 256 weights in 74 bytes. A weight is d / 8 * (1 + 2 * scale) * number, eight numbers from a codebook.

The scale has 4 bits. A number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import uint16, uint32, uint64

from quant.encoders.lattice_groups import make_encode, make_row_at, signs_at, store_scale_nibbles
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import concat, convert, inline, load, splat, store, store_half, u8x32, u16x32
from quant.packing.codebook_scales import make_nibble_scales
from quant.packing.codebook_signs import apply_signs, unpack_signs
from quant.packing.codebooks import load_codebook, make_codebook_lookup
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
assert BLOCK.itemsize == 74
D, QS, SCALES, SIZE = 0, 2, 66, 74

# qs:  nine bits are the index of a codebook row, seven are the signs of its columns, the first in the lowest
CODEBOOK, FACTOR, ZERO_POINT = load_codebook("iq2_xs"), 1 / 8, 64


def make_codes64(zero_point: int) -> Any:
    """Return the inlined function codes64(block, j): the codes of columns 64j .. 64j+63 with a zero point."""
    entries = make_codebook_lookup(zero_point + CODEBOOK, bits=16)

    @inline
    def codes64(block: int, j: int) -> Any:
        at = block + QS + 16 * j
        codes = concat(entries(load(uint64, at)), entries(load(uint64, at + 8)))
        sevens = convert(u8x32, load(u16x32, block + QS) >> splat(u16x32, uint16(9)))
        return apply_signs(codes, zero_point, unpack_signs(sevens, j))

    return codes64


scales = make_nibble_scales(D, SCALES, 16, FACTOR)
SPEC = FormatSpec(
    bits=7,
    group_size=16,
    superblock_bytes=SIZE,
    codes64=make_codes64(ZERO_POINT),
    signed_codes=make_codes64(0),
    scales=scales,
    zero_point=ZERO_POINT,
)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(CODEBOOK.view(np.uint8), FACTOR)
row_at = make_row_at(LATTICE)


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its sixteen groups."""
    store_half(block + D, d)
    store_scale_nibbles(k, first, 16, block + SCALES)
    for row in range(32):
        signs = signs_at(scratch, row // 2, row % 2) & uint32(127)
        store(block + QS + 2 * row, uint16(row_at(scratch, row // 2, row % 2) | (signs << uint32(9))))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(LATTICE, SPEC, (3.75, 9.0), store_block, effort, even_signs=True)
