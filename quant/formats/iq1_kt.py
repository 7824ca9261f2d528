"""IQ1_KT: a row begins with a float32 d, then every 256 weights have 56 bytes. A weight is d * scale * value: the
values of eight weights follow from an index of 13 bits (`quant.packing.generator`), and a scale is a number of IQ4_NL's
table.

The format is ik_llama.cpp's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import int32, int64, uint8, uint32

from quant.encoders.searches.table import make_nearest_entry
from quant.encoders.searches.trellis import SCALES as CODES
from quant.encoders.searches.trellis import index_of, make_encode_points, make_table_multiples, store_twelve_bits
from quant.encoders.trellis_points import POINT_SETS
from quant.jit.vectors import (
    convert,
    i32x16,
    inline,
    load,
    make_constant,
    make_shuffle,
    splat,
    store,
    u8x8,
    u32x16,
)
from quant.packing.generator import OFFSET
from quant.packing.iq4_codebook import KVALUES
from quant.packing.trellis import make_codes, make_trellis_spec, make_twelve_bits, scales_from_nibbles

BLOCK = np.dtype([("sh", "u1", 8), ("ql", "u1", 32), ("qh", "u1", 16)])
assert BLOCK.itemsize == 56
SH, QL, QH, SIZE, GROUP = 0, 8, 40, 56, 8

# sh:  byte k has the scale of columns 32k .. 32k + 31 in its low nibble; bit 4 + i is the top bit of the index of
#      columns 32k + 8i .. 32k + 8i + 7
# ql:  the eight low bits of the index of each eight columns
# qh:  byte i has bits 8 to 11 of index i in its low nibble, those of index 16 + i in its high one


def make_starts(groups: Sequence[int]) -> Any:
    """Return the inlined function starts(block): see `quant.packing.trellis.make_codes`."""
    twelve_bits, top_bytes = make_twelve_bits(groups, 32, QL, QH), make_shuffle([group // 4 for group in groups])
    top_shifts = make_constant(u32x16, [8 - group % 4 for group in groups])

    @inline
    def starts(block: int) -> Any:
        top = (convert(u32x16, top_bytes(load(u8x8, block + SH))) << top_shifts()) & splat(u32x16, uint32(4096))
        return (twelve_bits(block) | top) + splat(u32x16, uint32(OFFSET))

    return starts


@inline
def scales(block: int) -> Any:
    return scales_from_nibbles(load(u8x8, block + SH) & splat(u8x8, uint8(15)))


SPEC = make_trellis_spec(SIZE, scales, partial(make_codes, make_starts, GROUP))

# --- encoding -----------------------------------------------------------------------------------------------------

code_of = make_nearest_entry(KVALUES, i32x16, range(16))


@inline
def store_block(scratch: int, block: int, k: Any, first: int) -> None:
    """Store the scales and indices of eight lanes."""
    store(scratch + CODES, code_of(k))
    for lane in range(8):
        code = int64(load(int32, scratch + CODES + 4 * (first + lane)))
        for group in range(4):
            index, number = index_of(scratch, first + lane, group), 4 * lane + group
            code |= (index >> 12) << (4 + group)
            store_twelve_bits(block, QL, QH, number, 16, index)
        store(block + SH + lane, uint8(code))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiples = make_table_multiples(KVALUES)
    return make_encode_points(SPEC, POINT_SETS["IQ1_KT"], multiples, (64, 100), store_block, effort)
