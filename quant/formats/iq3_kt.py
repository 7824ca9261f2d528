"""IQ3_KT: a row begins with a float32 d, then every 256 weights have 100 bytes. A weight is +-d * scale * |value|: the
values of eight weights follow from an index of 16 bits (`quant.packing.generator`), and a scale is an integer below 16.

The format is ik_llama.cpp's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import float32, uint8, uint32

from quant.encoders.searches.tiles import load_weights
from quant.encoders.searches.trellis import (
    make_encode_points,
    make_integer_multiples,
    store_four_indices,
    store_scale_nibbles,
)
from quant.encoders.trellis_points import POINT_SETS
from quant.formats import iq2_kt
from quant.jit.vectors import (
    bits_from_mask,
    convert,
    f32x8,
    f32x16,
    i32x8,
    i32x16,
    inline,
    load,
    make_constant,
    make_shuffle,
    select,
    splat,
    store,
    u8x4,
    u8x32,
    u8x64,
)
from quant.packing.generator import MIDDLE
from quant.packing.trellis import (
    by_quarter,
    columns_of_quarter,
    low_and_high_nibbles,
    make_codes,
    make_trellis_spec,
)

BLOCK = np.dtype([("scales", "u1", 4), ("ql", "<u2", 32), ("qh", "u1", 32)])
assert BLOCK.itemsize == 100
SCALES, QH, SIZE, GROUP = 0, 68, 100, 8

# scales and ql are those of IQ2_KT
# qh:  bit k of byte i is set if the weight of column 32k + i is negative


def make_signs(columns: Sequence[int]) -> Any:
    """Return the inlined function signs(block): the signs of 64 columns, nonzero bytes if negative."""
    bytes_of, bits = make_shuffle([c % 32 for c in columns]), make_constant(u8x64, [1 << c // 32 for c in columns])

    @inline
    def signs(block: int) -> Any:
        return bytes_of(load(u8x32, block + QH)) & bits()

    return signs


def make_signed_codes(order: str) -> Any:
    """Return the inlined function codes(block, j): the codes of quarter j of the columns in some order."""
    values = make_codes(iq2_kt.make_starts, GROUP, order)
    signs = by_quarter([make_signs(columns_of_quarter(order, j)) for j in range(4)])

    @inline
    def codes(block: int, j: int) -> Any:
        value, ends = values(block, j), splat(u8x64, uint8(2 * MIDDLE))
        positive = select(value > splat(u8x64, uint8(MIDDLE)), value, ends - value)
        return select(signs(block, j) > splat(u8x64, uint8(0)), ends - positive, positive)

    return codes


@inline
def scales(block: int) -> Any:
    return convert(f32x8, convert(i32x8, low_and_high_nibbles(load(u8x4, block + SCALES))))


SPEC = make_trellis_spec(SIZE, scales, make_signed_codes)

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(scratch: int, block: int, k: Any, first: int) -> None:
    """Store the scales and indices of eight lanes, and the signs of their weights."""
    store_scale_nibbles(block + SCALES, scratch, convert(i32x16, k), first)
    store_four_indices(block + iq2_kt.QL, scratch, first)
    for column in range(32):
        signs = bits_from_mask(load_weights(scratch, column) < splat(f32x16, float32(0.0)))
        store(block + QH + column, uint8(uint32(signs) >> uint32(first)))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    points = POINT_SETS["IQ3_KT"]
    return make_encode_points(SPEC, points, make_integer_multiples(15), (76, 124), store_block, effort)
