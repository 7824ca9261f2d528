"""IQ2_XXS: 256 weights in 66 bytes. A weight is d / 8 * (1 + 2 * scale) * number, eight numbers from a codebook.

The scale has 4 bits. A number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, uint8, uint32

from quant.encoders.lattice_groups import make_encode, make_row_at, word_of_signs_and_scale
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import concat, inline, load, load_half, make_shuffle, store, store_half, u32x16
from quant.packing.codebook_signs import apply_signs, unpack_scales_of_words, unpack_signs_of_words
from quant.packing.codebooks import load_codebook, make_codebook_lookup
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("qs", [("entries", "u1", 4), ("signs", "<u4")], 8)])
assert BLOCK.itemsize == 66
D, QS, SIZE = 0, 2, 66

# signs: seven sign bits for the eight columns of each entry, the first in the lowest; the scale in the top four bits
CODEBOOK, FACTOR, ZERO_POINT = load_codebook("iq2_xxs"), 1 / 8, 64
entries = make_codebook_lookup(ZERO_POINT + CODEBOOK, bits=8)
odds = make_shuffle(range(1, 16, 2))


@inline
def sign_words(block: int) -> Any:
    """Return the eight words with signs and scales, u32x8."""
    return odds(load(u32x16, block + QS))


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 16 * j
    codes = concat(entries(load(uint32, at)), entries(load(uint32, at + 8)))
    return apply_signs(codes, ZERO_POINT, unpack_signs_of_words(sign_words(block), j))


@inline
def scales(block: int) -> Any:
    return unpack_scales_of_words(sign_words(block), load_half(block + D) * float32(FACTOR))


SPEC = FormatSpec(bits=7, group_size=32, superblock_bytes=SIZE, codes64=codes64, scales=scales, zero_point=ZERO_POINT)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(CODEBOOK.view(np.uint8), FACTOR)
row_at = make_row_at(LATTICE)


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        group, address = first + i, block + QS + 8 * i
        for row in range(4):
            store(address + row, uint8(row_at(scratch, group, row)))
        store(address + 4, word_of_signs_and_scale(scratch, k, group))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(LATTICE, SPEC, (3.75, 9.0), store_block, effort, even_signs=True)
