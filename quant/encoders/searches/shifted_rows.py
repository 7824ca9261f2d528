"""The encoder of formats whose rows begin with a scale, d, of which all groups' scales are integer multiples.

The number d is chosen for all groups of a row, so tiles are searched twice or three times: for the best scale of each
group, of which the codes, the shift and a trial (`quant.encoders.searches.scales`) are stored; with "normal" effort for
the best multiple of d under the codes that are then nearest, from which d is fitted again; and for the codes.
"""

from collections.abc import Sequence
from typing import Any

from numba import float32, uint16

from quant.encoders.encoder import ROW_NUMBERS
from quant.encoders.searches.scales import (
    argmax_lane,
    gain,
    ideal_trial,
    make_try_neighbours,
    make_try_scales,
    round_to_f16,
    signed_absmax_of_lanes,
)
from quant.encoders.searches.shifted_table import (
    CODES,
    SHIFTS,
    make_shifted_fit,
    make_store_indices,
    target_numbers,
)
from quant.encoders.searches.tiles import TRIALS, importance_unit, make_load_tile
from quant.encoders.vector_math import safe_reciprocals
from quant.jit.vectors import (
    bits_from_mask,
    extract,
    f32x16,
    inline,
    load,
    make_constant,
    reduce_sum,
    select,
    splat,
    store,
    store_half,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.shifted_table import ShiftedTable

COLUMNS, TILE = 32, 512
FITS = {"fast": 0, "normal": 2}  # of d with the nearest codes

# Candidates for the ratio of the largest scale of a row to d, for scales of five bits and for odd numbers of seven.
FIVE_BIT_DIVISORS = (-20, -18, -17, -16.5, -16, -15.5, -15, -14, 19, 17, 16, 15.5, 15, 14.5, 14, 13)
ODD_DIVISORS = (-139, -134, -130, -128, -127, -126, -125, -124, 139, 134, 130, 128, 127, 126, 125, 124)


@inline
def tile_numbers(scratch: int, tile: int) -> int:
    """Return the address of three vectors of a tile: the ideal scales of its groups, later their multiples of d; the
    norms of these trials; and the shifts.
    """
    return scratch + ROW_NUMBERS + 192 * tile


def make_find_scales(table: ShiftedTable, try_scales: Any) -> Any:
    """Make the inlined function find_scales(scratch, numbers): the ideal scale of each group of a tile. It stores them,
    their norms and the shifts at the address `numbers`.
    """

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


def make_choose_row_scale(multiple: Any, divisors: Sequence[float], round_scale: Any) -> Any:
    """Make the inlined function choose_row_scale(largest, scratch, tiles), which returns the best of sixteen candidates
    for d, the largest ideal scale of the row over each divisor.
    """
    divided = make_constant(f32x16, [1 / divisor for divisor in divisors])

    @inline
    def choose_row_scale(largest: float, scratch: int, tiles: int) -> Any:
        d = round_scale(splat(f32x16, float32(largest)) * divided())  # one candidate per lane
        inverse, gains = safe_reciprocals(d), splat(f32x16, float32(0.0))
        for tile in range(tiles):
            numbers = tile_numbers(scratch, tile)
            for group in range(16):
                ideal = splat(f32x16, load(float32, numbers + 4 * group))
                norm = splat(f32x16, load(float32, numbers + 64 + 4 * group))
                gains = gains + gain(multiple(ideal * inverse) * d, ideal, norm)
        return extract(d, argmax_lane(gains))

    return choose_row_scale


def make_row_scale_rounding(header_bytes: int) -> tuple[Any, Any]:
    """Return the inlined functions round_scale(v) and store_scale(address, d) for a half or a float32."""

    @inline
    def keep(v: Any) -> Any:
        return v

    @inline
    def store_float(address: int, d: float) -> None:
        store(address, float32(d))

    return {2: (round_to_f16, store_half), 4: (keep, store_float)}[header_bytes]


def make_encode_shifted_rows(
    spec: FormatSpec, table: ShiftedTable, multiple: Any, divisors: Sequence[float], step: int, store_block: Any,
    effort: str,
) -> Any:  # fmt: skip
    """Make the inlined function encode of `quant.encoders.encoder`.

    The scales are d times multiple(t) (see `quant.encoders.searches.scales`), whose distance is `step`. `divisors` are
    sixteen candidates for the ratio of the largest scale to d. store_block(block, k, first, shifted, indices) stores
    the multiples k in eight lanes from `first` on, a bit for each of their groups that has the shift, and 256 indices,
    one byte each.
    """
    fit, store_indices = make_shifted_fit(table, COLUMNS), make_store_indices(table, COLUMNS)
    load_tile = make_load_tile(COLUMNS, 256 // COLUMNS)
    find_scales = make_find_scales(table, make_try_scales(fit, COLUMNS, target_numbers(table, effort)))
    round_scale, store_scale = make_row_scale_rounding(spec.header_bytes)
    choose_row_scale = make_choose_row_scale(multiple, divisors, round_scale)
    try_neighbours, fits = make_try_neighbours(fit, multiple, step), FITS[effort]
    header, size = spec.header_bytes, spec.superblock_bytes

    @inline
    def fitted(x: int, importance: int, n: int, d: float, scratch: int) -> Any:
        """Replace the multiples of d by the best of their neighbours, and return the best d for these."""
        unit, above, below = importance_unit(importance, n), float32(0.0), float32(0.0)
        for tile in range((n + TILE - 1) // TILE):
            numbers = tile_numbers(scratch, tile)
            load_tile(x, importance, n, TILE * tile, unit, scratch)
            store(scratch + SHIFTS, load(f32x16, numbers + 128))
            k, more_above, more_below = try_neighbours(scratch, splat(f32x16, float32(d)), load(f32x16, numbers))
            store(numbers, k)
            above, below = above + reduce_sum(more_above), below + reduce_sum(more_below)
        return extract(round_scale(splat(f32x16, above / below)), 0) if below > float32(0.0) else d

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        unit, largest, tiles = importance_unit(importance, n), float32(0.0), (n + TILE - 1) // TILE
        for tile in range(tiles):
            load_tile(x, importance, n, TILE * tile, unit, scratch)
            most = signed_absmax_of_lanes(find_scales(scratch, tile_numbers(scratch, tile)), 0, 16)
            largest = most if abs(most) > abs(largest) else largest
        d = choose_row_scale(largest, scratch, tiles)
        inverse = safe_reciprocals(splat(f32x16, float32(d)))
        for tile in range(tiles):
            store(tile_numbers(scratch, tile), multiple(load(f32x16, tile_numbers(scratch, tile)) * inverse))
        for _ in range(fits):
            d = fitted(x, importance, n, d, scratch)
        store_scale(y, d)
        for tile in range(tiles):
            load_tile(x, importance, n, TILE * tile, unit, scratch)
            k, shifts = load(f32x16, tile_numbers(scratch, tile)), load(f32x16, tile_numbers(scratch, tile) + 128)
            store(scratch + SHIFTS, shifts)
            store_indices(scratch, k * splat(f32x16, float32(d)))
            shifted = uint16(bits_from_mask(shifts > splat(f32x16, float32(0.0))))
            for half in range(min(2, (n - TILE * tile) // 256)):
                block, group_bits = y + header + size * (2 * tile + half), (shifted >> (8 * half)) & 255
                store_block(block, k, 8 * half, group_bits, scratch + CODES + 256 * half)

    return encode
