"""IQ3_XXS: 256 weights in 98 bytes. A weight is d / 4 * (1 + 2 * scale) * number, four numbers from a codebook.

The scale has 4 bits. A number is 4, 12, 20, 28, 36, 44, 52 or 62, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, uint8, uint64

from quant.encoders.lattice_groups import make_encode, make_row_at, word_of_signs_and_scale
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import concat, inline, load, load_half, store, store_half, u32x8
from quant.packing.codebook_signs import apply_signs, unpack_scales_of_words, unpack_signs_of_words
from quant.packing.codebooks import load_codebook, make_codebook_lookup
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
assert BLOCK.itemsize == 98
D, QS, SIGNS, SIZE = 0, 2, 66, 98

# signs: seven bits for each eight columns, the first in the lowest; the scale in the top four bits
CODEBOOK, FACTOR, ZERO_POINT = load_codebook("iq3_xxs"), 1 / 4, 64
entries = make_codebook_lookup(ZERO_POINT + CODEBOOK, bits=8)


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 16 * j
    codes = concat(entries(load(uint64, at)), entries(load(uint64, at + 8)))
    return apply_signs(codes, ZERO_POINT, unpack_signs_of_words(load(u32x8, block + SIGNS), j))


@inline
def scales(block: int) -> Any:
    return unpack_scales_of_words(load(u32x8, block + SIGNS), load_half(block + D) * float32(FACTOR))


SPEC = FormatSpec(bits=7, group_size=32, superblock_bytes=SIZE, codes64=codes64, scales=scales, zero_point=ZERO_POINT)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(CODEBOOK.view(np.uint8), FACTOR)
row_at = make_row_at(LATTICE)


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        group = first + i
        for row in range(8):
            store(block + QS + 8 * i + row, uint8(row_at(scratch, group, row)))
        store(block + SIGNS + 4 * i, word_of_signs_and_scale(scratch, k, group))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(LATTICE, SPEC, (8.5, 20.0), store_block, effort, even_signs=True)
