"""IQ4_KSS: a row begins with a float32 d, then every 256 weights have 128 bytes. A weight is d * scale *
(TABLE[q] + shift), where q has 4 bits and the scale is an odd number from -127 to 127.

Four q have 16 bits, of which an even number is set, so 15 bits determine them. They are stored as the word w for which
w ^ (w >> 1) are these 16 bits. The lowest bit of w is then always 0, and a bit of the scale takes its place.

The format is ik_llama.cpp's.
"""

from typing import Any

import numpy as np
from numba import uint16, uint32, uint64

from quant.encoders.searches.joint_codes import make_even_fours
from quant.encoders.searches.scales import make_odd_multiple
from quant.encoders.searches.shifted_rows import ODD_DIVISORS, make_encode_shifted_rows
from quant.formats.iq4_k import TABLE
from quant.jit.vectors import (
    bitcast,
    bits_from_mask,
    inline,
    load,
    make_shuffle,
    mask_from_bits,
    select,
    splat,
    store,
    u8x64,
    u16x32,
)
from quant.packing.bit_planes import make_halves_of_pairs, make_store_nibbles_in_halves
from quant.packing.nibbles import nibbles_of_twice
from quant.packing.shifted_rows import make_odd_scales, make_row_spec, odd_scale_bytes

BLOCK = np.dtype([("qs", "<u2", 64)])
assert BLOCK.itemsize == 128
SIZE, HEADER = 128, 4

# qs:  word 8g + i is w of columns 32g + (2i, 2i + 16, 2i + 1, 2i + 17): w ^ (w >> 1), without the lowest bit of w, has
#      their q, the first one lowest. The lowest bits of words 8g .. 8g + 7 are a byte as in IQ4_KS: its lowest bit says
#      whether group g has the shift, the others times two are its scale plus 127
first_groups, last_groups = (
    make_shuffle([first + 16 * (lane // 32) + lane % 16 for lane in range(64)]) for first in (0, 32)
)
store_pairs = make_store_nibbles_in_halves(0)


@inline
def pairs64(block: int, half: int) -> Any:
    """Return the q of four groups, two in each byte."""
    word = load(u16x32, block + 64 * half) & splat(u16x32, uint16(0xFFFE))
    return bitcast(u8x64, word ^ (word >> splat(u16x32, uint16(1))))


@inline
def indices64(block: int, j: int) -> Any:
    pairs = pairs64(block, j // 2)
    return nibbles_of_twice(first_groups(pairs) if j % 2 == 0 else last_groups(pairs))


@inline
def lowest_bits_of_words(block: int) -> int:
    one = splat(u16x32, uint16(1))
    low, high = load(u16x32, block) & one, load(u16x32, block + 64) & one
    return uint64(bits_from_mask(low == one)) | (uint64(bits_from_mask(high == one)) << uint64(32))


scales, group_bits = make_odd_scales(lowest_bits_of_words)
SPEC = make_row_spec(
    TABLE, SIZE, HEADER, scales, group_bits, indices64, make_halves_of_pairs(pairs64), "halves"
)  # fmt: skip

# --- encoding -----------------------------------------------------------------------------------------------------


@inline
def store_block(block: int, k: Any, first: int, shifted: int, indices: int) -> None:
    """Store the scales of eight lanes, the bits of their groups, and 256 table indices, one byte each."""
    store_pairs(block, indices)
    scale_bits = odd_scale_bytes(k, first, shifted)
    for half in range(2):
        word, odd = load(u16x32, block + 64 * half), mask_from_bits(uint32(scale_bits >> uint64(32 * half)))
        for power in range(4):
            word = word ^ (word >> splat(u16x32, uint16(1 << power)))
        low = select(odd, splat(u16x32, uint16(1)), splat(u16x32, uint16(0)))
        store(block + 64 * half, (word & splat(u16x32, uint16(0xFFFE))) | low)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    multiple, joint = make_odd_multiple(-127, 127), make_even_fours(TABLE)
    return make_encode_shifted_rows(SPEC, TABLE, multiple, ODD_DIVISORS, 2, store_block, effort, joint)
