"""IQ4_KT: a row begins with a float32 d, then every 256 weights have 128 bytes. A weight is d * (scale - 64) * value:
the values of four weights follow from an index of 15 bits (`quant.packing.generator`), and the scale has 7 bits.

The format is ik_llama.cpp's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import int32, int64, uint32

from quant.encoders.searches.trellis import SCALES as CODES
from quant.encoders.searches.trellis import (
    VARIANTS,
    index_of,
    make_encode_points,
    make_integer_multiples,
    store_twelve_bits,
)
from quant.encoders.trellis_points import POINT_SETS
from quant.jit.vectors import (
    convert,
    f32x8,
    i32x8,
    i32x16,
    inline,
    load,
    make_constant,
    make_shuffle,
    splat,
    store,
    u32x8,
    u32x16,
)
from quant.packing.generator import OFFSET
from quant.packing.trellis import make_codes, make_trellis_spec, make_twelve_bits

BLOCK = np.dtype([("qs", "<u4", 8), ("ql", "u1", 64), ("qh", "u1", 32)])
assert BLOCK.itemsize == 128
QS, QL, QH, SIZE, GROUP = 0, 32, 96, 128, 4

# qs:  the integer of columns 32k .. 32k + 31: bit 0 adds 32768 to their indices, bits 1 to 7 are the scale, and bits
#      8 + 3i .. 10 + 3i are the top bits of the index of columns 32k + 4i .. 32k + 4i + 3
# ql:  the eight low bits of the index of each four columns
# qh:  byte i has bits 8 to 11 of index i in its low nibble, those of index 32 + i in its high one


def make_starts(groups: Sequence[int]) -> Any:
    """Return the inlined function starts(block): see `quant.packing.trellis.make_codes`."""
    twelve_bits, integers = make_twelve_bits(groups, 64, QL, QH), make_shuffle([group // 8 for group in groups])
    top_shifts = make_constant(u32x16, [8 + 3 * (group % 8) for group in groups])

    @inline
    def starts(block: int) -> Any:
        of_32 = integers(load(u32x8, block + QS))
        top = (of_32 >> top_shifts()) & splat(u32x16, uint32(7))
        added = (of_32 & splat(u32x16, uint32(1))) << splat(u32x16, uint32(15))
        return (twelve_bits(block) | (top << splat(u32x16, uint32(12))) | added) + splat(u32x16, uint32(OFFSET))

    return starts


@inline
def scales(block: int) -> Any:
    seven = (load(u32x8, block + QS) >> splat(u32x8, uint32(1))) & splat(u32x8, uint32(127))
    return convert(f32x8, convert(i32x8, seven) - splat(i32x8, int32(64)))


SPEC = make_trellis_spec(SIZE, scales, partial(make_codes, make_starts, GROUP))

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(scratch: int, block: int, k: Any, first: int) -> None:
    """Store the scales and indices of eight lanes."""
    store(scratch + CODES, convert(i32x16, k))
    for lane in range(8):
        choice = int64(load(int32, scratch + VARIANTS + 4 * (first + lane)))  # of the offset, and of the sign
        magnitude = int64(load(int32, scratch + CODES + 4 * (first + lane)))
        scale = 64 - magnitude if choice & 1 else 64 + magnitude
        integer = (choice >> 1) | (scale << 1)
        for group in range(8):
            index, number = index_of(scratch, first + lane, group), 8 * lane + group
            integer |= (index >> 12) << (8 + 3 * group)
            store_twelve_bits(block, QL, QH, number, 32, index)
        store(block + QS + 4 * lane, uint32(integer))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    points, multiples = POINT_SETS["IQ4_KT"], make_integer_multiples(63, reach=4, has_signs=True)
    return make_encode_points(SPEC, points, multiples, (84, 116), store_block, effort)
