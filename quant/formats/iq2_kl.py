"""IQ2_KL: a row begins with a half precision d, then every 256 weights have 86 bytes. Two neighbouring weights are
d * (scale - 32) times a pair of numbers, where the index of a pair has 5 bits and the scale 6.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import uint8, uint16

from quant.encoders.searches.joint_codes import make_code_pairs
from quant.encoders.searches.row_scale import COLUMNS, RowSearch, make_best_scales, make_encode_rows, prepare_nothing
from quant.encoders.searches.scales import (
    make_integer_multiple,
    make_neighbours,
    make_try_neighbours,
    make_try_scales,
)
from quant.encoders.searches.shifted_rows import FITS
from quant.encoders.searches.shifted_table import CODES
from quant.jit.vectors import (
    bitcast,
    concat,
    convert,
    inline,
    load,
    load_half,
    splat,
    store,
    u8x16,
    u8x32,
    u8x64,
    u16x32,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.nibbles import nibbles32
from quant.packing.shifted_table import make_lookup
from quant.packing.split_scales import make_split_scales

BLOCK = np.dtype([("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 64), ("qh", "u1", 16)])
assert BLOCK.itemsize == 86
SCALES_H, SCALES_L, QS, QH, SIZE, HEADER = 0, 2, 6, 70, 86, 2

# scales_h:  bits 2g and 2g + 1 are the two high bits of scale g
# scales_l:  byte g has the low bits of scale g in its low nibble, those of scale 4 + g in its high one
# qs:        byte 16j + i has the low bits of the index of columns 64j + (2i, 2i + 1) in its low nibble, those of
#            columns 64j + 32 + (2i, 2i + 1) in its high one
# qh:        bit g of byte i is the fifth bit of the index of columns 32g + (2i, 2i + 1)
SECOND_NUMBERS = {  # by the first number, both numbers of IQ3_K's table
    -63: (-23, 13),
    -40: (-63, -10, 13, 47),
    -23: (-40, -23, 1, 13, 28),
    -10: (-63, 1, 13, 47),
    1: (-23, -10, 1, 13, 28),
    13: (-40, -23, -10, 1, 13),
    28: (-63, -23, 1, 28, 47),
    47: (-23, 13),
}
PAIRS = [(first, second) for first, seconds in SECOND_NUMBERS.items() for second in seconds]
ZERO_POINT = 64
code_of = make_lookup([number + ZERO_POINT for pair in PAIRS for number in pair])
scales, store_scales = make_split_scales(SCALES_L, (0, 2, 4, 6, 1, 3, 5, 7), SCALES_H, 2)


@inline
def codes64(block: int, j: int) -> Any:
    bits = load(u8x16, block + QH) >> splat(u8x16, uint8(2 * j))
    fifths = concat(bits, bits >> splat(u8x16, uint8(1))) & splat(u8x32, uint8(1))
    index = convert(u16x32, nibbles32(block + QS + 16 * j) | (fifths << splat(u8x32, uint8(4))))
    twice = (index << splat(u16x32, uint16(1))) | (index << splat(u16x32, uint16(9)))
    return code_of(bitcast(u8x64, twice | splat(u16x32, uint16(256))))


SPEC = FormatSpec(
    bits=7,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=scales,
    zero_point=ZERO_POINT,
    header_bytes=HEADER,
    row_scale=load_half,
)

# --- encoding -----------------------------------------------------------------------------------------------------

# Candidates for the ratio of the largest scale of a row to d.
DIVISORS = (-38, -36, -34, -33, -32, -31, -30, -28, 37, 35, 33, 32, 31, 30, 29, 27)


def target_numbers(effort: str) -> list[float]:
    """Return the numbers to which trials map the largest weight of a group, of both signs. Pairs reach 63."""
    some = np.linspace(38, 88, {"fast": 4, "normal": 12}[effort])
    return [*some, *-some]


@inline
def store_block(scratch: int, block: int, k: Any, first: int) -> None:
    """Store the scales and indices of eight lanes."""
    store(block + SCALES_H, uint16(0))
    store_scales(block, k, first)
    fifths, four = splat(u8x16, uint8(0)), splat(u8x16, uint8(4))
    for j in range(4):
        at = scratch + CODES + 16 * (first + 2 * j)
        even, odd = load(u8x16, at), load(u8x16, at + 16)
        store(block + QS + 16 * j, (even & splat(u8x16, uint8(15))) | (odd << four))
        fifths = fifths | ((even >> four) << splat(u8x16, uint8(2 * j)))
        fifths = fifths | ((odd >> four) << splat(u8x16, uint8(2 * j + 1)))
    store(block + QH, fifths)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple, (fit, store_indices) = make_integer_multiple(-32, 31), make_code_pairs(PAIRS)
    search = RowSearch(
        find_scales=make_best_scales(make_try_scales(fit, COLUMNS, target_numbers(effort))),
        prepare=prepare_nothing,
        magnitude=multiple,
        multiple=multiple,
        try_neighbours=make_try_neighbours(fit, *make_neighbours(multiple, 1)),
        encode_groups=store_indices,
        store_block=store_block,
    )
    return make_encode_rows(SPEC, search, DIVISORS, FITS[effort])
