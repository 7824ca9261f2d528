"""The encoder of formats whose rows begin with a scale, and whose groups of 32 columns choose one of two tables."""

from collections.abc import Sequence
from typing import Any

from numba import float32, uint16

from quant.encoders.searches.joint_codes import JointCodes
from quant.encoders.searches.row_scale import COLUMNS, RowSearch, make_encode_rows
from quant.encoders.searches.scales import (
    gain,
    ideal_trial,
    make_neighbours,
    make_try_neighbours,
    make_try_scales,
)
from quant.encoders.searches.shifted_table import (
    CODES,
    SHIFTS,
    make_shifted_fit,
    make_store_indices,
    target_numbers,
)
from quant.encoders.searches.tiles import TRIALS
from quant.jit.vectors import bits_from_mask, f32x16, inline, load, select, splat, store
from quant.packing.format_spec import FormatSpec
from quant.packing.shifted_table import ShiftedTable

FITS = {"fast": 0, "normal": 2}  # of d with the nearest codes

# Candidates for the ratio of the largest scale of a row to d, for scales of five bits and for odd numbers of seven.
FIVE_BIT_DIVISORS = (-20, -18, -17, -16.5, -16, -15.5, -15, -14, 19, 17, 16, 15.5, 15, 14.5, 14, 13)
ODD_DIVISORS = (-139, -134, -130, -128, -127, -126, -125, -124, 139, 134, 130, 128, 127, 126, 125, 124)


def make_find_scales(table: ShiftedTable, try_scales: Any) -> Any:
    """Make the function find_scales of a `RowSearch`, whose third vector has the shifts."""
    shift = float32(table.shift)

    @inline
    def best_of(scratch: int, shift: float) -> Any:
        store(scratch + SHIFTS, splat(f32x16, float32(shift)))
        return ideal_trial(scratch + TRIALS, try_scales(scratch, scratch + TRIALS))

    @inline
    def find_scales(scratch: int, numbers: int) -> Any:
        ideal, norm = best_of(scratch, 0.0)
        moved, moved_norm = best_of(scratch, shift)
        better = gain(moved, moved, moved_norm) > gain(ideal, ideal, norm)
        scales = select(better, moved, ideal)
        store(numbers, scales)
        store(numbers + 64, select(better, moved_norm, norm))
        store(numbers + 128, select(better, splat(f32x16, shift), splat(f32x16, float32(0.0))))
        return scales

    return find_scales


@inline
def prepare(scratch: int, numbers: int) -> None:
    """Use the shifts that were chosen for a tile."""
    store(scratch + SHIFTS, load(f32x16, numbers + 128))


def make_encode_shifted_rows(
    spec: FormatSpec, table: ShiftedTable, multiple: Any, divisors: Sequence[float], step: int, store_block: Any,
    effort: str, joint: JointCodes | None = None,
) -> Any:  # fmt: skip
    """Make the inlined function encode of `quant.encoders.encoder`.

    The scales are d times multiple(t) (see `quant.encoders.searches.scales`), whose distance is `step`. `divisors` are
    sixteen candidates for the ratio of the largest scale to d. store_block(block, k, first, shifted, indices) stores
    the multiples k in eight lanes from `first` on, a bit for each of their groups that has the shift, and 256 indices,
    one byte each. Without `joint` codes, each column has the nearest number of the table.
    """
    fit, store_indices = joint or (make_shifted_fit(table, COLUMNS), make_store_indices(table, COLUMNS))

    @inline
    def store_chosen(scratch: int, block: int, k: Any, first: int) -> None:
        shifted = uint16(bits_from_mask(load(f32x16, scratch + SHIFTS) > splat(f32x16, float32(0.0))))
        store_block(block, k, first, (shifted >> first) & 255, scratch + CODES + COLUMNS * first)

    search = RowSearch(
        find_scales=make_find_scales(table, make_try_scales(fit, COLUMNS, target_numbers(table, effort))),
        prepare=prepare,
        magnitude=multiple,
        multiple=multiple,
        try_neighbours=make_try_neighbours(fit, *make_neighbours(multiple, step)),
        encode_groups=store_indices,
        store_block=store_chosen,
    )
    return make_encode_rows(spec, search, divisors, FITS[effort])
