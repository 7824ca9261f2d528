"""IQ4_XS: 256 weights in 136 bytes. A weight is d * (scale - 32) * KVALUES[q], where q has 4 bits and the scale 6."""

from typing import Any

import numpy as np
from numba import uint16

from quant.encoders.searches.scales import make_integer_multiple, make_search, make_try_scales
from quant.encoders.searches.table import load_nibbles, make_encode_groups, make_fit, target_codes
from quant.encoders.searches.tiles import make_build_tile, make_encode_by_tiles
from quant.jit.vectors import (
    extract,
    f32x8,
    inline,
    load_half,
    make_lookup16,
    splat,
    store,
    store_half,
)
from quant.packing.bit_planes import make_nibbles_in_halves, make_store_nibbles_in_halves
from quant.packing.format_spec import BitField, CodeLayout, FormatSpec
from quant.packing.iq4_codebook import CODES, KVALUES, ZERO_POINT
from quant.packing.nibbles import make_nibbles_of_groups
from quant.packing.split_scales import make_split_scales

BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])
assert BLOCK.itemsize == 136
D, SCALES_H, SCALES_L, QS, SIZE = 0, 2, 4, 8, 136

# qs:        byte 16k + i holds column 32k + i in its low nibble and column 32k + 16 + i in its high one
# scales_l:  nibble k, the low one of a byte first, holds the four low bits of scale k
# scales_h:  bits 2k and 2k + 1 are the two high bits of scale k
code_of, number_of = make_lookup16(CODES), make_lookup16(KVALUES)
groups, halves, store_codes = (
    make_nibbles_of_groups(QS), make_nibbles_in_halves(QS), make_store_nibbles_in_halves(QS)
)  # fmt: skip
multiples, store_multiples = make_split_scales(SCALES_L, range(8), SCALES_H, 2)


@inline
def codes64(block: int, j: int) -> Any:
    return code_of(groups(block, j))


@inline
def ordered(block: int, j: int) -> Any:
    return code_of(halves(block, j))


@inline
def signed_codes(block: int, j: int) -> Any:
    return number_of(halves(block, j))


@inline
def scales(block: int) -> Any:
    return multiples(block) * splat(f32x8, load_half(block + D))


SPEC = FormatSpec(
    bits=8,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    zero_point=ZERO_POINT,
    order="halves",
    ordered_codes=ordered,
    signed_codes=signed_codes,
    table=KVALUES,
    code_layout=CodeLayout(((BitField(QS),), (BitField(QS, 4),)), 16, table=tuple(CODES)),
)


# --- encoding -----------------------------------------------------------------------------------------------------

# Candidates for the largest scale of a block divided by d.
DIVISORS = (-33, -32.5, -32, -31.5, -31, -30.5, -30, -29.5, 32, 31.5, 31, 30.5, 30, 29.5, 29, 28.5)


@inline
def store_scales(d: Any, k: Any, first: int, block: int) -> None:
    """Store d and the scales of eight groups from lanes `first` and up."""
    store_half(block + D, extract(d, first))
    store(block + SCALES_H, uint16(0))
    store_multiples(block, k, first)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`.

    It searches the best of several scales for each group, and then the best d for all groups of a block.
    """
    fit, encode_groups = make_fit(KVALUES), make_encode_groups(KVALUES)
    make_tile = make_build_tile(32, 8)
    search = make_search(
        fit, make_try_scales(fit, 32, target_codes(effort)), make_integer_multiple(-32, 31), 1, DIVISORS, 8, effort
    )

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        make_tile(x, importance, unit, scratch)
        d, k = search(scratch)
        encode_groups(scratch, d * k)
        for block in range(2):
            store_scales(d, k, 8 * block, y + SIZE * block)
            for group in range(8):
                store(y + SIZE * block + QS + 16 * group, load_nibbles(scratch, 8 * block + group))

    return make_encode_by_tiles(32, 2 * SIZE, encode_tile)
