"""IQ2_KT: a row begins with a float32 d, then every 256 weights have 68 bytes. A weight is d * scale * value: the
values of eight weights follow from an index of 16 bits (`quant.packing.generator`), and a scale is a number of
IQ4_NL's table.

The format is ik_llama.cpp's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import uint32

from quant.encoders.searches.table import make_nearest_entry
from quant.encoders.searches.trellis import (
    make_encode_points,
    make_table_multiples,
    store_four_indices,
    store_scale_nibbles,
)
from quant.encoders.trellis_points import POINT_SETS
from quant.jit.vectors import convert, i32x16, inline, load, make_shuffle, splat, u8x4, u16x32, u32x16
from quant.packing.generator import OFFSET
from quant.packing.iq4_codebook import KVALUES
from quant.packing.trellis import low_and_high_nibbles, make_codes, make_trellis_spec, scales_from_nibbles

BLOCK = np.dtype([("scales", "u1", 4), ("ql", "<u2", 32)])
assert BLOCK.itemsize == 68
SCALES, QL, SIZE, GROUP = 0, 4, 68, 8

# scales:  byte g has the scale of columns 32g .. 32g + 31 in its low nibble, that of 128 columns later in its high one
# ql:      an index for each eight columns


def make_starts(groups: Sequence[int]) -> Any:
    """Return the inlined function starts(block): see `quant.packing.trellis.make_codes`."""
    chosen = make_shuffle(groups)

    @inline
    def starts(block: int) -> Any:
        return convert(u32x16, chosen(load(u16x32, block + QL))) + splat(u32x16, uint32(OFFSET))

    return starts


@inline
def scales(block: int) -> Any:
    return scales_from_nibbles(low_and_high_nibbles(load(u8x4, block + SCALES)))


SPEC = make_trellis_spec(SIZE, scales, partial(make_codes, make_starts, GROUP))

# --- encoding -----------------------------------------------------------------------------------------------------

code_of = make_nearest_entry(KVALUES, i32x16, range(16))


@inline
def store_block(scratch: int, block: int, k: Any, first: int) -> None:
    """Store the scales and indices of eight lanes."""
    store_scale_nibbles(block + SCALES, scratch, code_of(k), first)
    store_four_indices(block + QL, scratch, first)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiples = make_table_multiples(KVALUES)
    return make_encode_points(SPEC, POINT_SETS["IQ2_KT"], multiples, (64, 100), store_block, effort)
