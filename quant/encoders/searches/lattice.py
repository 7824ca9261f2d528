"""The nearest row of a codebook, for sixteen rows of weights at a time: exact, and without looking at every column.

A codebook's rows are made of few different halves: with 8 columns of 3 numbers there are at most 3**4 = 81, with 4
columns of 8 numbers 8**2 = 64. So the squared error of each half is computed once for the left columns and once for the
right ones, from those of its own two parts; then the best right half for each left one is a minimum over those that the
codebook has beside it, one instruction a row. The places of halves travel in the lowest bits of their errors, which are
never negative and so are ordered like whole numbers; what is lost of an error is less than 2**-15 of it.

A code is factor * number + shift: numbers are the codebook's, the shift is that of a whole row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int32, njit, types, uint32
from numpy.typing import NDArray

from quant.encoders.searches.tiles import FREE, important, weight
from quant.jit.emit import I32, I64
from quant.jit.vectors import (
    bitcast,
    convert,
    f32x16,
    fma,
    i32x16,
    intrinsic,
    least_int,
    load,
    select,
    splat,
    store,
    u32x16,
    word,
)

# Loops over constant tables, nested in words that LLVM inlines, came out as loops without an end (LLVM 22): numba puts
# these into their callers itself, before LLVM sees them.
spliced: Any = njit(inline="always", error_model="numpy")

PLACE_BITS = 7
PLACE = (1 << PLACE_BITS) - 1
# In the scratch memory: the errors of both parts of a half, by their numbers; those of all halves, left and right.
PARTS, PARTS_APART = FREE, 64 * 9
LEFT = PARTS + 2 * PARTS_APART
RIGHT = LEFT + (64 << PLACE_BITS)
BEHIND = RIGHT + (64 << PLACE_BITS)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A codebook, (count, columns) of numbers from 0 to 255, taken apart."""

    rows: NDArray[np.uint8]
    factor: float = 1.0

    @property
    def columns(self) -> int:
        """Of a row: 4 or 8."""
        return int(self.rows.shape[1])

    @cached_property
    def numbers(self) -> list[int]:
        """That there are, in order."""
        return [int(number) for number in np.unique(self.rows)]

    @cached_property
    def halves(self) -> NDArray[np.uint8]:
        """All different ones, left or right, in order."""
        return np.unique(self.rows.reshape(2 * len(self.rows), -1), axis=0)

    @cached_property
    def parts(self) -> list[int]:
        """Where the errors of every half's parts lie, two after the other: see `PARTS`."""
        ranks = np.searchsorted(self.numbers, self.halves)
        part = ranks if self.columns == 4 else len(self.numbers) * ranks[:, ::2] + ranks[:, 1::2]
        return [int(place) for place in (64 * part + [0, PARTS_APART]).ravel()]

    @cached_property
    def pairs(self) -> NDArray[np.intp]:
        """(count, 2): the places of each row's halves."""
        place = {tuple(half): number for number, half in enumerate(self.halves.tolist())}
        return np.array([[place[tuple(half)] for half in row.reshape(2, -1).tolist()] for row in self.rows])

    @cached_property
    def beside(self) -> list[list[int]]:
        """For every half the places of those that the codebook has to the right of it."""
        return [self.pairs[self.pairs[:, 0] == left, 1].tolist() for left in range(len(self.halves))]


def emit_table(b: ir.IRBuilder, bits: int, values: Sequence[int]) -> ir.Value:
    """The address of such whole numbers in the object file."""
    kind = ir.ArrayType(ir.IntType(bits), len(values))
    variable = ir.GlobalVariable(b.module, kind, b.module.get_unique_name("lattice"))
    variable.linkage, variable.global_constant, variable.align = "internal", True, 64
    variable.initializer = ir.Constant(kind, list(values))
    return b.bitcast(variable, kind.element.as_pointer())


def emit_entry(b: ir.IRBuilder, table: ir.Value, bits: int, place: ir.Value) -> ir.Value:
    """One of a table's numbers."""
    kind = ir.IntType(bits)
    return b.load(b.gep(table, [place], inbounds=True, source_etype=kind))


def constants(bits: int, values: Sequence[int]) -> Any:
    """The word entry(place): int64, one of such whole numbers, of at most 16 bits."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.zext(emit_entry(b, emit_table(b, bits, values), bits, args[0]), I64)

    @intrinsic
    def entry(typingctx: Any, place: Any) -> Any:
        return word(types.int64, [types.int64], emit)

    return entry


def constants_by_lane(values: Sequence[int]) -> Any:
    """The word entries(places): u32x16, in each lane the one of such whole numbers at its place."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        table, found = emit_table(b, 32, values), ir.Constant(u32x16.llvm, ir.Undefined)
        for lane in range(16):
            place = b.zext(b.extract_element(args[0], I32(lane)), I64)
            found = b.insert_element(found, emit_entry(b, table, 32, place), I32(lane))
        return found

    @intrinsic
    def entries(typingctx: Any, places: Any) -> Any:
        return word(u32x16, [i32x16], emit)

    return entries


def row_numbers(lattice: Lattice) -> Any:
    """The word row_number(pair): which row of the codebook has the halves left << 7 | right."""
    numbers = np.zeros(len(lattice.halves) << PLACE_BITS, np.uint16)
    numbers[lattice.pairs[:, 0] << PLACE_BITS | lattice.pairs[:, 1]] = np.arange(len(lattice.rows))
    return constants(16, numbers.tolist())


def half_errors(lattice: Lattice) -> Any:
    """The word put_halves(scratch, column, s, shift, target): the errors of all halves that begin at a column."""
    numbers, factor, half = tuple(float(n) for n in lattice.numbers), lattice.factor, lattice.columns // 2
    count, halves = len(lattice.numbers), len(lattice.halves)
    part, other_part = constants(16, lattice.parts[::2]), constants(16, lattice.parts[1::2])

    @spliced
    def error(scratch: int, column: int, number: float, s: Any, shift: float) -> Any:
        code = float32(number) * float32(factor) + shift
        away = weight(scratch, column) - s * splat(f32x16, float32(code))
        return important(scratch, column) * away * away

    @spliced
    def put_part(scratch: int, column: int, s: Any, shift: float, target: int) -> None:
        for i in range(count):
            first = error(scratch, column, numbers[i], s, shift)
            if half == 2:
                store(target + 64 * i, first)
            else:
                for k in range(count):
                    second = error(scratch, column + 1, numbers[k], s, shift)
                    store(target + 64 * (count * i + k), first + second)

    @spliced
    def put_halves(scratch: int, column: int, s: Any, shift: float, target: int) -> None:
        put_part(scratch, column, s, shift, scratch + PARTS)
        put_part(scratch, column + half // 2, s, shift, scratch + PARTS + PARTS_APART)
        for i in range(halves):
            first = load(f32x16, scratch + PARTS + part(i))
            bits = bitcast(i32x16, first + load(f32x16, scratch + PARTS + other_part(i)))
            store(target + 64 * i, (bits & splat(i32x16, int32(~PLACE))) | splat(i32x16, int32(i)))

    return put_halves


def nearest_pairs(lattice: Lattice) -> Any:
    """The word nearest(scratch): i32x16, the pair with the least error in each lane, as left << 7 | right."""
    count_beside = constants(8, [len(beside) for beside in lattice.beside])
    place_beside = constants(16, [64 * right for beside in lattice.beside for right in beside])
    halves = len(lattice.halves)

    @spliced
    def nearest(scratch: int) -> Any:
        least, found = splat(f32x16, float32(3e38)), splat(i32x16, int32(0))
        at = 0
        for left in range(halves):
            best = splat(i32x16, int32(0x7F000000))
            for _ in range(count_beside(left)):
                best = least_int(best, load(i32x16, scratch + RIGHT + place_beside(at)))
                at += 1
            error = bitcast(f32x16, best) + load(f32x16, scratch + LEFT + 64 * left)
            pair = (best & splat(i32x16, int32(PLACE))) | splat(i32x16, int32(left << PLACE_BITS))
            found, least = select(error < least, pair, found), select(error < least, error, least)
        return found

    return nearest


def row_fitting(lattice: Lattice) -> Any:
    """The word fit_row(scratch, row, s, shift, sums): i32x16, the pairs of the codebook's rows that are nearest under
    the scales s. A lane is a group of the tile.

    It adds sum importance * weight * code to the f32x16 at `sums`, and sum importance * code**2 to the one behind it.
    """
    put_halves, nearest, half = half_errors(lattice), nearest_pairs(lattice), lattice.columns // 2
    packed = constants_by_lane((lattice.halves.astype(np.int64) << (8 * np.arange(half))).sum(1).tolist())
    factor = lattice.factor

    @spliced
    def add(scratch: int, column: int, places: Any, shift: float, sums: int) -> None:
        product, norm, bytes_ = load(f32x16, sums), load(f32x16, sums + 64), packed(places)
        for j in range(half):
            number = (bytes_ >> splat(u32x16, uint32(8 * j))) & splat(u32x16, uint32(255))
            code = fma(convert(f32x16, number), splat(f32x16, float32(factor)), splat(f32x16, shift))
            weighed = code * important(scratch, column + j)
            product, norm = fma(weighed, weight(scratch, column + j), product), fma(weighed, code, norm)
        store(sums, product)
        store(sums + 64, norm)

    @spliced
    def fit_row(scratch: int, row: int, s: Any, shift: float, sums: int) -> Any:
        first = 2 * half * row
        put_halves(scratch, first, s, shift, scratch + LEFT)
        put_halves(scratch, first + half, s, shift, scratch + RIGHT)
        pair = nearest(scratch)
        add(scratch, first, pair >> splat(i32x16, int32(PLACE_BITS)), shift, sums)
        add(scratch, first + half, pair & splat(i32x16, int32(PLACE)), shift, sums)
        return pair

    return fit_row
