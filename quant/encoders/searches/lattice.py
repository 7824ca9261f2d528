"""Exact nearest-neighbour search in a codebook, for sixteen rows of weights at a time.

The rows of a codebook are built from few distinct halves: with 8 columns of 3 values there are at most 3**4 = 81, with
4 columns of 8 values 8**2 = 64. So the squared error of each half is computed once for the left columns and once for
the right ones, from the errors of its two quarters. Then the best right half for each left one is a minimum over the
right halves that the codebook combines with it: one instruction per row. The index of a half is stored in the lowest
bits of its error. Errors are never negative, so they compare like integers; the relative precision lost is below
2**-15.

A code is factor * number + shift. Numbers are those of the codebook, and a shift applies to a whole row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int32, njit, types, uint32
from numpy.typing import NDArray

from quant.encoders.searches.tiles import FREE, load_importance, load_weights
from quant.jit.emit import I32, I64
from quant.jit.vectors import (
    bitcast,
    convert,
    f32x16,
    fma,
    i32x16,
    intrinsic,
    load,
    lowering,
    min_int,
    select,
    splat,
    store,
    u32x16,
)

# LLVM 22 compiles loops over constant tables, nested in functions that it inlines, to infinite loops. So numba inlines
# these functions itself, before LLVM sees them.
inlined: Any = njit(inline="always", error_model="numpy")

HALF_BITS = 7
HALF_MASK = (1 << HALF_BITS) - 1
# Offsets in scratch memory: the errors of both quarters of a half, by number; the errors of all halves, left and right.
QUARTERS, QUARTER_STRIDE = FREE, 64 * 9
LEFT = QUARTERS + 2 * QUARTER_STRIDE
RIGHT = LEFT + (64 << HALF_BITS)
END = RIGHT + (64 << HALF_BITS)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A codebook, uint8 (count, columns), split into halves and quarters."""

    rows: NDArray[np.uint8]
    factor: float = 1.0

    @property
    def columns(self) -> int:
        """The number of columns of a row: 4 or 8."""
        return int(self.rows.shape[1])

    @cached_property
    def numbers(self) -> list[int]:
        """The distinct numbers of the codebook, ascending."""
        return [int(number) for number in np.unique(self.rows)]

    @cached_property
    def halves(self) -> NDArray[np.uint8]:
        """All distinct halves, left or right, in order."""
        return np.unique(self.rows.reshape(2 * len(self.rows), -1), axis=0)

    @cached_property
    def quarter_offsets(self) -> list[int]:
        """The offsets of the errors of every half's two quarters, one after the other: see `QUARTERS`."""
        ranks = np.searchsorted(self.numbers, self.halves)
        quarters = ranks if self.columns == 4 else len(self.numbers) * ranks[:, ::2] + ranks[:, 1::2]
        return [int(offset) for offset in (64 * quarters + [0, QUARTER_STRIDE]).ravel()]

    @cached_property
    def pairs(self) -> NDArray[np.intp]:
        """The indices of each row's halves, (count, 2)."""
        index_of = {tuple(half): number for number, half in enumerate(self.halves.tolist())}
        return np.array([[index_of[tuple(half)] for half in row.reshape(2, -1).tolist()] for row in self.rows])

    @cached_property
    def right_halves(self) -> list[list[int]]:
        """For every left half, the indices of the right halves that the codebook combines with it."""
        return [self.pairs[self.pairs[:, 0] == left, 1].tolist() for left in range(len(self.halves))]


def emit_table(b: ir.IRBuilder, bits: int, values: Sequence[int]) -> ir.Value:
    """Emit a constant table of integers and return its address."""
    kind = ir.ArrayType(ir.IntType(bits), len(values))
    variable = ir.GlobalVariable(b.module, kind, b.module.get_unique_name("lattice"))
    variable.linkage, variable.global_constant, variable.align = "internal", True, 64
    variable.initializer = ir.Constant(kind, list(values))
    return b.bitcast(variable, kind.element.as_pointer())


def emit_entry(b: ir.IRBuilder, table: ir.Value, bits: int, index: ir.Value) -> ir.Value:
    """Emit the load of one table entry."""
    kind = ir.IntType(bits)
    return b.load(b.gep(table, [index], inbounds=True, source_etype=kind))


def make_constant_table(bits: int, values: Sequence[int]) -> Any:
    """Make the inlined function entry(index), which returns one of `values`, of at most 16 bits, as int64."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.zext(emit_entry(b, emit_table(b, bits, values), bits, args[0]), I64)

    @intrinsic
    def entry(typingctx: Any, index: Any) -> Any:
        return lowering(types.int64, [types.int64], emit)

    return entry


def make_lane_table(values: Sequence[int]) -> Any:
    """Make the inlined function entries(indices): u32x16, the one of `values` at the index in each lane."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        table, result = emit_table(b, 32, values), ir.Constant(u32x16.llvm, ir.Undefined)
        for lane in range(16):
            index = b.zext(b.extract_element(args[0], I32(lane)), I64)
            result = b.insert_element(result, emit_entry(b, table, 32, index), I32(lane))
        return result

    @intrinsic
    def entries(typingctx: Any, indices: Any) -> Any:
        return lowering(u32x16, [i32x16], emit)

    return entries


def make_row_number(lattice: Lattice) -> Any:
    """Make the inlined function row_number(pair): the index of the codebook row with the halves left << 7 | right."""
    numbers = np.zeros(len(lattice.halves) << HALF_BITS, np.uint16)
    numbers[lattice.pairs[:, 0] << HALF_BITS | lattice.pairs[:, 1]] = np.arange(len(lattice.rows))
    return make_constant_table(16, numbers.tolist())


def make_store_half_errors(lattice: Lattice) -> Any:
    """Make the inlined function store_halves(scratch, column, s, shift, target).

    It stores the errors of all halves from a column on.
    """
    numbers, factor, half = tuple(float(n) for n in lattice.numbers), lattice.factor, lattice.columns // 2
    count, halves = len(lattice.numbers), len(lattice.halves)
    first_quarter = make_constant_table(16, lattice.quarter_offsets[::2])
    second_quarter = make_constant_table(16, lattice.quarter_offsets[1::2])

    @inlined
    def error(scratch: int, column: int, number: float, s: Any, shift: float) -> Any:
        code = float32(number) * float32(factor) + shift
        away = load_weights(scratch, column) - s * splat(f32x16, float32(code))
        return load_importance(scratch, column) * away * away

    @inlined
    def store_quarters(scratch: int, column: int, s: Any, shift: float, target: int) -> None:
        for i in range(count):
            first = error(scratch, column, numbers[i], s, shift)
            if half == 2:
                store(target + 64 * i, first)
            else:
                for k in range(count):
                    second = error(scratch, column + 1, numbers[k], s, shift)
                    store(target + 64 * (count * i + k), first + second)

    @inlined
    def store_halves(scratch: int, column: int, s: Any, shift: float, target: int) -> None:
        store_quarters(scratch, column, s, shift, scratch + QUARTERS)
        store_quarters(scratch, column + half // 2, s, shift, scratch + QUARTERS + QUARTER_STRIDE)
        for i in range(halves):
            first = load(f32x16, scratch + QUARTERS + first_quarter(i))
            bits = bitcast(i32x16, first + load(f32x16, scratch + QUARTERS + second_quarter(i)))
            store(target + 64 * i, (bits & splat(i32x16, int32(~HALF_MASK))) | splat(i32x16, int32(i)))

    return store_halves


def make_nearest_pair(lattice: Lattice) -> Any:
    """Make the inlined nearest(scratch): i32x16, the pair with the least error per lane, as left << 7 | right."""
    right_count = make_constant_table(8, [len(rights) for rights in lattice.right_halves])
    right_offset = make_constant_table(16, [64 * right for rights in lattice.right_halves for right in rights])
    halves = len(lattice.halves)

    @inlined
    def nearest(scratch: int) -> Any:
        least, nearest_pair = splat(f32x16, float32(3e38)), splat(i32x16, int32(0))
        at = 0
        for left in range(halves):
            best = splat(i32x16, int32(0x7F000000))
            for _ in range(right_count(left)):
                best = min_int(best, load(i32x16, scratch + RIGHT + right_offset(at)))
                at += 1
            error = bitcast(f32x16, best) + load(f32x16, scratch + LEFT + 64 * left)
            pair = (best & splat(i32x16, int32(HALF_MASK))) | splat(i32x16, int32(left << HALF_BITS))
            nearest_pair, least = select(error < least, pair, nearest_pair), select(error < least, error, least)
        return nearest_pair

    return nearest


def make_fit_row(lattice: Lattice) -> Any:
    """Make the inlined function fit_row(scratch, row, s, shift, sums).

    It returns the pairs of the codebook rows nearest under scales s. Each lane is a group of the tile. The result is an
    i32x16. The function adds sum importance * weight * code to the f32x16 at `sums`, and sum importance * code**2 to
    the next f32x16.
    """
    store_halves, nearest, half = make_store_half_errors(lattice), make_nearest_pair(lattice), lattice.columns // 2
    packed = make_lane_table((lattice.halves.astype(np.int64) << (8 * np.arange(half))).sum(1).tolist())
    factor = lattice.factor

    @inlined
    def add(scratch: int, column: int, indices: Any, shift: float, sums: int) -> None:
        product, norm, bytes_ = load(f32x16, sums), load(f32x16, sums + 64), packed(indices)
        for j in range(half):
            number = (bytes_ >> splat(u32x16, uint32(8 * j))) & splat(u32x16, uint32(255))
            code = fma(convert(f32x16, number), splat(f32x16, float32(factor)), splat(f32x16, shift))
            weighed = code * load_importance(scratch, column + j)
            product, norm = fma(weighed, load_weights(scratch, column + j), product), fma(weighed, code, norm)
        store(sums, product)
        store(sums + 64, norm)

    @inlined
    def fit_row(scratch: int, row: int, s: Any, shift: float, sums: int) -> Any:
        first = 2 * half * row
        store_halves(scratch, first, s, shift, scratch + LEFT)
        store_halves(scratch, first + half, s, shift, scratch + RIGHT)
        pair = nearest(scratch)
        add(scratch, first, pair >> splat(i32x16, int32(HALF_BITS)), shift, sums)
        add(scratch, first + half, pair & splat(i32x16, int32(HALF_MASK)), shift, sums)
        return pair

    return fit_row
