"""Groups of weights whose codes are codebook rows of -1, 0 and 1, shifted by 1/8 up or down.

The encoders of IQ1_S and IQ1_M use this module. Sixteen groups form a tile: see `quant.encoders.searches.tiles`.
"""

from typing import Any

import numpy as np
from numba import float32, int32, int64, uint32

from quant.encoders.searches.lattice import END, Lattice, make_fit_row, make_row_number
from quant.encoders.searches.scales import make_odd_multiple, make_search, make_try_scales
from quant.encoders.searches.tiles import make_encode_superblocks
from quant.jit.vectors import f32x16, i32x16, inline, load, select, splat, store
from quant.packing.codebooks import load_codebook
from quant.packing.format_spec import FormatSpec

LATTICE = Lattice((load_codebook("iq1_s") + 1).view(np.uint8))  # its values are 0, 1 and 2
SHIFT_UP = -1 + 1 / 8  # added to a value, this gives the code
ROW_COLUMNS = 8
# Candidates for the ratio of the largest scale of a block to d; codes to which the largest weight of a group is mapped.
DIVISORS = [12 + 0.4 * i for i in range(16)]
TARGET_CODES = (1.4, 2.4)

# Offsets in scratch memory: the pairs of rows shifted up, then of rows shifted down; the common shift of neighbouring
# rows, 1 for down; the sums for both shifts.
PAIRS, SHIFTS, SUMS = END, END + 64 * 8, END + 64 * 12
number_of_row = make_row_number(LATTICE)


def make_fit(group: int, shared_rows: int) -> Any:
    """Make the inlined fit(scratch, s) of `quant.encoders.searches.scales`; `shared_rows` rows have a common shift."""
    fit_row, rows = make_fit_row(LATTICE), group // ROW_COLUMNS

    @inline
    def fit(scratch: int, s: Any) -> Any:
        zero, none, one = splat(f32x16, float32(0.0)), splat(i32x16, int32(0)), splat(i32x16, int32(1))
        product, norm = zero, zero
        for first in range(0, rows, shared_rows):
            for shift_index in range(2):
                sums, shift = scratch + SUMS + 128 * shift_index, float32(SHIFT_UP - 0.25 * shift_index)
                store(sums, zero)
                store(sums + 64, zero)
                for row in range(first, first + shared_rows):
                    pair = fit_row(scratch, row, s, shift, sums)
                    store(scratch + PAIRS + 64 * (4 * shift_index + row), pair)
            up, up_norm = load(f32x16, scratch + SUMS), load(f32x16, scratch + SUMS + 64)
            down, down_norm = load(f32x16, scratch + SUMS + 128), load(f32x16, scratch + SUMS + 192)
            is_down = s * (down + down - s * down_norm) > s * (up + up - s * up_norm)
            product, norm = product + select(is_down, down, up), norm + select(is_down, down_norm, up_norm)
            store(scratch + SHIFTS + 64 * (first // shared_rows), select(is_down, one, none))
        return product / norm, norm

    return fit


@inline
def shift_at(scratch: int, group: int, number: int) -> Any:
    """Return the common shift of neighbouring rows of a group, as uint32: 1 for down, 0 for up."""
    return load(uint32, scratch + SHIFTS + 64 * number + 4 * group)


@inline
def row_at(scratch: int, group: int, row: int, shift: int) -> Any:
    """Return the index of the codebook row as uint32."""
    pair = load(int32, scratch + PAIRS + 64 * (4 * int64(shift) + row) + 4 * group)
    return uint32(number_of_row(int64(pair)))


def make_encode(spec: FormatSpec, shared_rows: int, store_block: Any, effort: str) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`; `shared_rows` rows have a common shift.

    The scales are odd multiples of d, up to 15. `quant.encoders.searches.tiles.make_encode_superblocks` describes
    store_block.
    """
    fit = make_fit(spec.group_size, shared_rows)
    try_scales = make_try_scales(fit, spec.group_size, TARGET_CODES)
    search = make_search(fit, try_scales, make_odd_multiple(1, 15), 2, DIVISORS, spec.n_groups, effort)

    @inline
    def encode_groups(scratch: int) -> Any:
        d, k = search(scratch)
        fit(scratch, d * k)
        return d, k

    return make_encode_superblocks(spec, encode_groups, store_block)
