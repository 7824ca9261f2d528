"""The encoder of formats whose rows begin with a scale, d, of which all groups' scales are multiples.

The number d is chosen for all groups of a row, so tiles are searched twice or more: for the best scale of each group,
of which a trial (`quant.encoders.searches.scales`) is stored; with "normal" effort for the best multiples of d under
the codes that are then nearest, from which d is fitted again; and for the codes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from numba import float32

from quant.encoders.encoder import ROW_NUMBERS
from quant.encoders.searches.scales import argmax_lane, gain, ideal_trial, round_to_f16, signed_absmax_of_lanes
from quant.encoders.searches.tiles import TRIALS, importance_unit, make_load_tile
from quant.encoders.vector_math import safe_reciprocals
from quant.jit.vectors import (
    extract,
    f32x16,
    inline,
    load,
    make_constant,
    reduce_sum,
    splat,
    store,
    store_half,
)
from quant.packing.format_spec import FormatSpec

COLUMNS, TILE = 32, 512


class RowSearch(NamedTuple):
    """The inlined functions of a format that work on the tile of 16 groups in scratch memory.

      find_scales(scratch, numbers)    the ideal scale of each group. It stores them, the norms of their trials and what
                                       else `prepare` needs as three vectors at the address `numbers`
      prepare(scratch, numbers)        called with a tile before the following functions
      magnitude(t), multiple(t)        the multiple of d that is nearest to t, for ideal scales in units of d: with the
                                       sign of t, and with that of the multiples if each has only one
      try_neighbours(scratch, d, k)    see `quant.encoders.searches.scales.make_try_neighbours`
      encode_groups(scratch, scales)   stores the codes of all groups in scratch memory
      store_block(scratch, block, k, first)  writes the block of the groups from lane `first` on, whose multiples are k
    """

    find_scales: Any
    prepare: Any
    magnitude: Any
    multiple: Any
    try_neighbours: Any
    encode_groups: Any
    store_block: Any


def make_best_scales(try_scales: Any) -> Any:
    """Make the function find_scales of a `RowSearch` that takes the best trial and has no other numbers."""

    @inline
    def find_scales(scratch: int, numbers: int) -> Any:
        scales, norms = ideal_trial(scratch + TRIALS, try_scales(scratch, scratch + TRIALS))
        store(numbers, scales)
        store(numbers + 64, norms)
        return scales

    return find_scales


@inline
def prepare_nothing(scratch: int, numbers: int) -> None:
    """Do nothing, as `prepare` of a `RowSearch`: a tile has no other numbers."""


@inline
def tile_numbers(scratch: int, tile: int) -> int:
    """Return the address of three vectors of a tile: the ideal scales of its groups, later their multiples of d; the
    norms of these trials; and numbers of the format.
    """
    return scratch + ROW_NUMBERS + 192 * tile


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


def make_encode_rows(spec: FormatSpec, search: RowSearch, divisors: Sequence[float], fits: int) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`.

    `divisors` are sixteen candidates for the ratio of the largest scale to d, which is fitted again `fits` times.
    """
    find_scales, prepare, magnitude, multiple, try_neighbours, encode_groups, store_block = search
    load_tile, (round_scale, store_scale) = make_load_tile(COLUMNS, 8), make_row_scale_rounding(spec.header_bytes)
    choose_row_scale = make_choose_row_scale(magnitude, divisors, round_scale)
    header, size = spec.header_bytes, spec.superblock_bytes

    @inline
    def fitted(x: int, importance: int, n: int, d: float, scratch: int) -> Any:
        """Replace the multiples of d by the best of their neighbours, and return the best d for these."""
        unit, above, below = importance_unit(importance, n), float32(0.0), float32(0.0)
        for tile in range((n + TILE - 1) // TILE):
            numbers = tile_numbers(scratch, tile)
            load_tile(x, importance, n, TILE * tile, unit, scratch)
            prepare(scratch, numbers)
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
            prepare(scratch, tile_numbers(scratch, tile))
            k = load(f32x16, tile_numbers(scratch, tile))
            encode_groups(scratch, k * splat(f32x16, float32(d)))
            for half in range(min(2, (n - TILE * tile) // 256)):
                store_block(scratch, y + header + size * (2 * tile + half), k, 8 * half)

    return encode
