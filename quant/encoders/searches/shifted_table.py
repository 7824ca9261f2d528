"""The search of scales and codes for tables of which a group of 16 or 32 columns chooses one of two versions.

The inlined functions work on tiles of 16 groups, which are one or two superblocks: see
`quant.encoders.searches.tiles` and `quant.encoders.searches.scales`. The shift of each group's table is in scratch
memory. As the shifted table is the table plus a number, the nearest entry for t is that of the table for t minus the
number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import float32, int64

from quant.encoders.searches.scales import (
    gain,
    load_trial,
    make_search,
    make_try_scales,
)
from quant.encoders.searches.table import make_nearest_entry, safe_reciprocals
from quant.encoders.searches.tiles import FREE, TRIALS, load_importance, load_weights, make_encode_superblocks
from quant.jit.vectors import (
    bits_from_mask,
    convert,
    f32x16,
    fma,
    gather,
    i32x16,
    inline,
    load,
    maximum,
    select,
    splat,
    store,
    u8x16,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.shifted_table import EXTRA, ShiftedTable

SHIFTS, BY_COLUMN, CODES = FREE, FREE + 64, FREE + 1024  # in scratch memory
N_TARGETS = {"fast": 3, "normal": 8}


def make_shifted_fit(table: ShiftedTable, columns: int) -> Any:
    """Make the inlined function fit(scratch, s): see `quant.encoders.searches.scales.make_search`."""
    nearest = make_nearest_entry(table.numbers, f32x16, table.numbers)

    @inline
    def fit(scratch: int, s: Any) -> Any:
        product, norm, inverse = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0)), safe_reciprocals(s)
        shift = load(f32x16, scratch + SHIFTS)
        for j in range(columns):
            x = load_weights(scratch, j)
            value = nearest(x * inverse - shift) + shift
            weighed = value * load_importance(scratch, j)
            product, norm = fma(weighed, x, product), fma(weighed, value, norm)
        return product / norm, norm

    return fit


@inline
def largest_gain(trials: int, count: int) -> Any:
    """Return the largest gain of all trials, each with its ideal scale, for each of 16 groups."""
    best = splat(f32x16, float32(0.0))
    for number in range(count):
        ideal, norm = load_trial(trials, number)
        best = maximum(best, gain(ideal, ideal, norm))
    return best


def make_choose_shifts(table: ShiftedTable, try_scales: Any) -> Any:
    """Make the inlined function choose_shifts(scratch), which stores the shift of each group with which the best of
    some scales has the smaller error.
    """
    shift = float32(table.shift)

    @inline
    def choose_shifts(scratch: int) -> None:
        trials = scratch + TRIALS
        store(scratch + SHIFTS, splat(f32x16, shift))
        with_shift = largest_gain(trials, try_scales(scratch, trials))
        store(scratch + SHIFTS, splat(f32x16, float32(0.0)))
        without = largest_gain(trials, try_scales(scratch, trials))
        shifts = select(with_shift > without, splat(f32x16, shift), splat(f32x16, float32(0.0)))
        store(scratch + SHIFTS, shifts)

    return choose_shifts


def make_transpose_indices(columns: int) -> Any:
    """Make the inlined function transpose_indices(scratch), which copies the indices at scratch + BY_COLUMN, u8x16 for
    each column, to scratch + CODES, group after group in the order of columns.
    """

    @inline
    def transpose_indices(scratch: int) -> None:
        for group in range(16):
            for first in range(0, columns, 16):
                indices = gather(u8x16, scratch + BY_COLUMN + 16 * first + group, int64(16))
                store(scratch + CODES + columns * group + first, indices)

    return transpose_indices


def make_store_indices(table: ShiftedTable, columns: int) -> Any:
    """Make the inlined function store_indices(scratch, s), which stores the nearest table indices of all groups at
    scratch + CODES, one byte each, in the order of columns.
    """
    nearest = make_nearest_entry(table.numbers, i32x16, range(len(table.numbers)))
    transpose_indices = make_transpose_indices(columns)

    @inline
    def store_indices(scratch: int, s: Any) -> None:
        inverse, shift = safe_reciprocals(s), load(f32x16, scratch + SHIFTS)
        for j in range(columns):
            index = nearest(load_weights(scratch, j) * inverse - shift)
            store(scratch + BY_COLUMN + 16 * j, convert(u8x16, index))
        transpose_indices(scratch)

    return store_indices


def target_numbers(table: ShiftedTable, effort: str) -> list[float]:
    """Return the numbers to which trials map the largest weight of a group, of both signs."""
    largest = max(-table.numbers[0], table.numbers[-1])
    some = np.linspace(0.72 * largest, 1.1 * largest, N_TARGETS[effort])
    return [*some, *-some]


def make_encode_shifted(
    spec: FormatSpec,
    table: ShiftedTable,
    multiple: Any,
    divisors: Sequence[float],
    step: int,
    store_scales: Any,
    store_indices_at: Any,
    effort: str,
) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`.

    The scales are d times multiple(t) (see `quant.encoders.searches.scales`), whose distance is `step`. `divisors` are
    sixteen candidates for the ratio of the largest scale to d. store_scales(block, d, k) stores d and the multiples,
    and store_indices_at(block, indices) 256 indices, one byte each.
    """
    fit, store_indices = make_shifted_fit(table, spec.group_size), make_store_indices(table, spec.group_size)
    try_scales = make_try_scales(fit, spec.group_size, target_numbers(table, effort))
    choose_shifts = make_choose_shifts(table, try_scales)
    search = make_search(fit, try_scales, multiple, step, divisors, 16, effort)

    @inline
    def encode_groups(scratch: int) -> Any:
        choose_shifts(scratch)
        d, k = search(scratch)
        store_indices(scratch, d * k)
        return d, k

    @inline
    def store_block(scratch: int, d: float, k: Any, first: int, block: int) -> None:
        store_scales(block, d, k)
        shifted = load(f32x16, scratch + SHIFTS) > splat(f32x16, float32(0.0))
        store(block + EXTRA, bits_from_mask(shifted))
        store_indices_at(block, scratch + CODES)

    return make_encode_superblocks(spec, encode_groups, store_block)
