"""Codes of several columns that are chosen together, because a format stores only some of their combinations.

The inlined functions work on tiles of 16 groups: see `quant.encoders.searches.tiles`. The function choose(scratch, s)
of a format finds the combinations whose numbers, times s, are nearest to the weights, by the importance of the columns.
It stores the numbers, f32x16 for each column, at scratch + VALUES, and the indices for `make_transpose_indices`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import int32

from quant.encoders.searches.shifted_table import BY_COLUMN, SHIFTS, make_transpose_indices
from quant.encoders.searches.table import make_nearest_entry
from quant.encoders.searches.tiles import FREE, load_importance, load_weights
from quant.encoders.vector_math import HUGE, broadcast, safe_reciprocals
from quant.jit.emit import constant
from quant.jit.vectors import (
    absolute,
    convert,
    f32x16,
    fma,
    i32x16,
    inline,
    intrinsic,
    load,
    lowering,
    maximum,
    minimum,
    select,
    splat,
    store,
    u8x16,
)
from quant.packing.shifted_table import ShiftedTable

COLUMNS = 32
VALUES = FREE + 2048  # in scratch memory; then four vectors of entries, of the second best ones, and of their losses
ENTRIES, OTHERS, LOSSES = (VALUES + 2048 + 256 * k for k in range(3))
OFFSET = 128  # makes the numbers of tables positive: an entry is a number plus this, and its index times 256

# Limits of weights in units of the scale: differences of errors must be numbers.
LARGEST_INVERSE, MOST_STEPS = 1e28, 1e6


class JointCodes(NamedTuple):
    """The inlined functions fit(scratch, s) of `quant.encoders.searches.scales.make_search`, and
    store_indices(scratch, s) as `quant.encoders.searches.shifted_table.make_store_indices` makes it."""

    fit: Any
    store_indices: Any


def make_joint_codes(choose: Any, indices: int) -> JointCodes:
    """Make the functions for choose(scratch, s), which stores `indices` indices of a group."""
    transpose_indices = make_transpose_indices(indices)

    @inline
    def fit(scratch: int, s: Any) -> Any:
        choose(scratch, s)
        product, norm = broadcast(0.0), broadcast(0.0)
        for j in range(COLUMNS):
            value = load(f32x16, scratch + VALUES + 64 * j)
            weighed = value * load_importance(scratch, j)
            product, norm = fma(weighed, load_weights(scratch, j), product), fma(weighed, value, norm)
        return product * safe_reciprocals(norm), norm

    @inline
    def store_indices(scratch: int, s: Any) -> None:
        choose(scratch, s)
        transpose_indices(scratch)

    return JointCodes(fit, store_indices)


@inline
def bounded(v: Any, limit: float) -> Any:
    """Return v with each lane between -limit and limit."""
    return maximum(minimum(v, broadcast(limit)), broadcast(-limit))


@inline
def in_steps(scratch: int, column: int, inverse: Any) -> Any:
    """Return the weights of a column in units of the scales of which the reciprocals are given."""
    return bounded(load_weights(scratch, column) * bounded(inverse, LARGEST_INVERSE), MOST_STEPS)


@inline
def number_of(entry: Any) -> Any:
    """Return the number of an entry."""
    return convert(f32x16, (entry & splat(i32x16, int32(255))) - splat(i32x16, int32(OFFSET)))


@inline
def index_of(entry: Any) -> Any:
    """Return the index of an entry, u8x16."""
    return convert(u8x16, entry >> splat(i32x16, int32(8)))


# --- IQ4_KSS: of every four indices, an even number of bits is set ------------------------------------------------


def make_nearest_of_parity(table: ShiftedTable, parity: int) -> Any:
    """Make the inlined function nearest(t): the nearest entry whose index has an even (0) or odd (1) number of ones."""
    chosen = [index for index in range(len(table.numbers)) if index.bit_count() % 2 == parity]
    numbers = [table.numbers[index] for index in chosen]
    entries = [index << 8 | number + OFFSET for index, number in zip(chosen, numbers, strict=True)]
    return make_nearest_entry(numbers, i32x16, entries)


def make_even_fours(table: ShiftedTable) -> JointCodes:
    """Make the functions for indices of which columns 2k, 2k + 1, 2k + 16 and 2k + 17 of a group have an even number
    of ones together.

    Each column takes the nearest entry. If the number of ones is odd then, the column that loses least takes the
    nearest entry of the other parity.
    """
    nearest_even, nearest_odd = make_nearest_of_parity(table, 0), make_nearest_of_parity(table, 1)

    @inline
    def choose_entry(scratch: int, column: int, i: int, inverse: Any, shift: Any) -> Any:
        """Store the nearest entry of column i of four, and that of the other parity. Return how much worse it is, and
        whether the nearest one is odd.
        """
        t = in_steps(scratch, column, inverse) - shift
        even, odd = nearest_even(t), nearest_odd(t)
        a, b = number_of(even), number_of(odd)
        loss = load_importance(scratch, column) * (b - a) * (a + b - t - t)  # of the odd one: (t - b)^2 - (t - a)^2
        takes_odd = loss < broadcast(0.0)
        store(scratch + ENTRIES + 64 * i, select(takes_odd, odd, even))
        store(scratch + OTHERS + 64 * i, select(takes_odd, even, odd))
        store(scratch + LOSSES + 64 * i, absolute(loss))
        return absolute(loss), takes_odd

    @inline
    def choose(scratch: int, s: Any) -> None:
        inverse, shift = safe_reciprocals(s), load(f32x16, scratch + SHIFTS)
        for first in range(0, COLUMNS // 2, 2):
            least, is_odd = broadcast(HUGE), shift > shift
            for i in range(4):
                loss, takes_odd = choose_entry(scratch, first + i % 2 + 16 * (i // 2), i, inverse, shift)
                least, is_odd = minimum(least, loss), is_odd ^ takes_odd
            for i in range(4):
                at, column = scratch + 64 * i, first + i % 2 + 16 * (i // 2)
                changes = is_odd & (load(f32x16, at + LOSSES) == least)
                is_odd = is_odd ^ changes
                entry = select(changes, load(i32x16, at + OTHERS), load(i32x16, at + ENTRIES))
                store(scratch + VALUES + 64 * column, number_of(entry) + shift)
                store(scratch + BY_COLUMN + 16 * column, index_of(entry))

    return make_joint_codes(choose, COLUMNS)


# --- IQ2_KL: two neighbouring numbers are one of 32 pairs ---------------------------------------------------------


def make_nearest_pair(pairs: Sequence[tuple[int, int]]) -> Any:
    """Make the inlined function nearest_pair(t, u, w, v), which finds the pair with the least w * (t - first)**2 +
    v * (u - second)**2 in every lane.

    It returns the first number plus OFFSET, the second one plus OFFSET times 256, and the index times 65536, i32x16.
    """

    def emit_errors(b: ir.IRBuilder, t: ir.Value, w: ir.Value, numbers: set[int]) -> dict[int, ir.Value]:
        away = {number: b.fsub(t, constant(t.type, number)) for number in numbers}
        return {number: b.fmul(w, b.fmul(each, each)) for number, each in away.items()}

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        t, u, w, v = args
        firsts = emit_errors(b, t, w, {first for first, _ in pairs})
        seconds = emit_errors(b, u, v, {second for _, second in pairs})
        least, result = constant(t.type, HUGE), constant(i32x16.llvm, 0)
        for index, (first, second) in enumerate(pairs):
            error = b.fadd(firsts[first], seconds[second])
            is_less = b.fcmp_ordered("<", error, least)
            least = b.select(is_less, error, least)
            entry = first + OFFSET | second + OFFSET << 8 | index << 16
            result = b.select(is_less, constant(i32x16.llvm, entry), result)
        return result

    @intrinsic
    def nearest_pair(typingctx: Any, t: Any, u: Any, w: Any, v: Any) -> Any:
        return lowering(i32x16, [t, u, w, v], emit)

    return nearest_pair


def make_code_pairs(pairs: Sequence[tuple[int, int]]) -> JointCodes:
    """Make the functions for columns 2k and 2k + 1 whose numbers are one of these pairs, which has one index."""
    nearest_pair = make_nearest_pair(pairs)

    @inline
    def choose(scratch: int, s: Any) -> None:
        inverse, eight = safe_reciprocals(s), splat(i32x16, int32(8))
        for pair in range(COLUMNS // 2):
            first, second = 2 * pair, 2 * pair + 1
            t, u = in_steps(scratch, first, inverse), in_steps(scratch, second, inverse)
            entry = nearest_pair(t, u, load_importance(scratch, first), load_importance(scratch, second))
            store(scratch + VALUES + 64 * first, number_of(entry))
            store(scratch + VALUES + 64 * second, number_of(entry >> eight))
            store(scratch + BY_COLUMN + 16 * pair, index_of(entry >> eight))

    return make_joint_codes(choose, COLUMNS // 2)
