"""IQ3_S: 256 weights in 110 bytes. A weight is d * (1 + 2 * scale) * number, four numbers from a codebook.

The scale has 4 bits. A number is odd and at most 15, with a sign.
"""

from typing import Any

import numpy as np
from numba import int64, uint8, uint16, uint32, uint64

from quant.encoders.lattice_groups import make_encode, make_row_at, signs_at, store_scale_nibbles
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import (
    bitcast,
    concat,
    convert,
    extract,
    inline,
    load,
    mask_from_bits,
    select,
    splat,
    store,
    store_half,
    u8x16,
    u16x16,
    u64x4,
)
from quant.packing.codebook_scales import make_nibble_scales
from quant.packing.codebook_signs import apply_signs
from quant.packing.codebooks import load_codebook, make_codebook_lookup
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
assert BLOCK.itemsize == 110
D, QS, QH, SIGNS, SCALES, SIZE = 0, 2, 66, 74, 106, 110

# Byte i of qs and bit i of qh are the index of a codebook row. signs has a bit for each column.
CODEBOOK, ZERO_POINT = load_codebook("iq3_s"), 16
entries = make_codebook_lookup(ZERO_POINT + CODEBOOK, bits=16)


@inline
def codebook_rows(block: int, j: int) -> Any:
    """Return the indices of sixteen codebook rows, four in a lane."""
    high = mask_from_bits(load(uint16, block + QH + 2 * j))
    ninths = select(high, splat(u16x16, uint16(256)), splat(u16x16, uint16(0)))
    return bitcast(u64x4, convert(u16x16, load(u8x16, block + QS + 16 * j)) | ninths)


@inline
def codes64(block: int, j: int) -> Any:
    numbers = codebook_rows(block, j)
    low = concat(entries(extract(numbers, int64(0))), entries(extract(numbers, int64(1))))
    high = concat(entries(extract(numbers, int64(2))), entries(extract(numbers, int64(3))))
    return apply_signs(concat(low, high), ZERO_POINT, load(uint64, block + SIGNS + 8 * j))


scales = make_nibble_scales(D, SCALES, 8, 1.0)
SPEC = FormatSpec(bits=5, group_size=32, superblock_bytes=SIZE, codes64=codes64, scales=scales, zero_point=ZERO_POINT)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(CODEBOOK.view(np.uint8))
row_at = make_row_at(LATTICE)


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its eight groups."""
    store_half(block + D, d)
    store_scale_nibbles(k, first, 8, block + SCALES)
    for i in range(8):
        high = uint32(0)
        for row in range(8):
            number = row_at(scratch, first + i, row)
            store(block + QS + 8 * i + row, uint8(number))
            high |= (number >> uint32(8)) << uint32(row)
        store(block + QH + i, uint8(high))
        for eight in range(4):
            store(block + SIGNS + 4 * i + eight, uint8(signs_at(scratch, first + i, eight)))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(LATTICE, SPEC, (10.0, 18.5), store_block, effort, even_signs=False)
