"""IQ2_S: 256 weights in 82 bytes. A weight is d / 8 * (1 + 2 * scale) * number, eight numbers from a codebook.

The scale has 4 bits. A number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import uint8, uint32, uint64

from quant.encoders.lattice_groups import make_encode, make_row_at, signs_at, store_scale_nibbles
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import concat, inline, load, store, store_half
from quant.packing.codebook_scales import make_nibble_scales
from quant.packing.codebook_signs import apply_signs
from quant.packing.codebooks import load_codebook, make_split_codebook_lookup
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])
assert BLOCK.itemsize == 82
D, QS, SIGNS, QH, SCALES, SIZE = 0, 2, 34, 66, 74, 82

# Byte i of qs and two bits of byte i // 4 of qh, the first in the lowest, are the index of a codebook row. Byte i of
# signs has a bit for each of its columns.
CODEBOOK, FACTOR, ZERO_POINT = load_codebook("iq2_s"), 1 / 8, 64


def make_codes64(zero_point: int) -> Any:
    """Return the inlined function codes64(block, j): the codes of columns 64j .. 64j+63 with a zero point."""
    entries = make_split_codebook_lookup(zero_point + CODEBOOK, bits=2)

    @inline
    def codes64(block: int, j: int) -> Any:
        low, high = block + QS + 8 * j, block + QH + 2 * j
        first = entries(load(uint32, low), load(uint8, high))
        codes = concat(first, entries(load(uint32, low + 4), load(uint8, high + 1)))
        return apply_signs(codes, zero_point, load(uint64, block + SIGNS + 8 * j))

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
    for four in range(8):
        high = uint32(0)
        for i in range(4):
            group, eight, row = 2 * four + i // 2, i % 2, 4 * four + i
            number = row_at(scratch, group, eight)
            store(block + QS + row, uint8(number))
            store(block + SIGNS + row, uint8(signs_at(scratch, group, eight)))
            high |= (number >> uint32(8)) << uint32(2 * i)
        store(block + QH + four, uint8(high))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(LATTICE, SPEC, (3.75, 9.0), store_block, effort, even_signs=False)
