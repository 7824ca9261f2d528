"""IQ2_XXS: 256 weights in 66 bytes. A weight is d / 4 * (0.5 + scale) * number, eight numbers from a codebook.

The scale has 4 bits. A number is 8, 25 or 43, with a sign.
"""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint32

from quant.encoders.lattice_groups import make_encode, make_row_at, scale_at, signs_at, target_codes
from quant.encoders.searches.lattice import Lattice
from quant.jit.vectors import (
    bitcast,
    concat,
    convert,
    extract,
    f32x8,
    inline,
    load,
    load_half,
    make_shuffle,
    splat,
    store,
    store_half,
    u32x8,
    u32x16,
    u64x4,
)
from quant.packing.codebooks import apply_signs, load_codebook, make_codebook_lookup, unpack_signs
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "<f2"), ("qs", [("entries", "u1", 4), ("signs", "<u4")], 8)])
assert BLOCK.itemsize == 66
D, QS, SIZE = 0, 2, 66

# signs: seven sign bits for the eight columns of each entry, the first in the lowest; the scale in the top four bits
ZERO_POINT = 64
entries = make_codebook_lookup(ZERO_POINT + load_codebook("iq2_xxs"), bits=8)
odds = make_shuffle(range(1, 16, 2))


@inline
def signs(block: int) -> Any:
    return odds(load(u32x16, block + QS))


@inline
def codes64(block: int, j: int) -> Any:
    at = block + QS + 16 * j
    codes = concat(entries(load(uint32, at)), entries(load(uint32, at + 8)))
    return apply_signs(codes, ZERO_POINT, extract(bitcast(u64x4, unpack_signs(signs(block))), int64(j)))


@inline
def scales(block: int) -> Any:
    scale = convert(f32x8, signs(block) >> splat(u32x8, uint32(28)))
    return (scale + splat(f32x8, float32(0.5))) * splat(f32x8, load_half(block + D) * float32(0.25))


SPEC = FormatSpec(
    bits=7,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    zero_point=ZERO_POINT,
)


# --- encoding -----------------------------------------------------------------------------------------------------

LATTICE = Lattice(load_codebook("iq2_xxs").view(np.uint8), 1 / 8)
row_at = make_row_at(LATTICE)


@inline
def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
    """Store a block from its eight groups."""
    store_half(block + D, d)
    for i in range(8):
        group, place = first + i, block + QS + 8 * i
        packed = scale_at(k, group) << uint32(28)
        for eight in range(4):
            store(place + eight, uint8(row_at(scratch, group, eight)))
            packed |= (signs_at(scratch, group, eight) & uint32(127)) << uint32(7 * eight)
        store(place + 4, uint32(packed))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    return make_encode(LATTICE, 32, True, target_codes(3.75, 9.0, effort), SIZE, store_block, effort)
