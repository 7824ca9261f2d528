"""Groups of columns side by side: what the searches for their scales work on.

A search works on groups of columns that have one scale each. A lane is a group: sixteen neighbours of a row are laid
out as out[column][group], so that no step of a search adds up lanes, and every number of a search is a vector.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from quant.encoders.encoding import every, units
from quant.jit.emit import I32, I64, emit_load
from quant.jit.vectors import absolute, f32x16, fma, inline, intrinsic, lanes, load, maximum, store, word

GROUPS = 16
WEIGHTS, NUMBERS, FREE = 64 * 32, 2 * 64 * 32, 2 * 64 * 32 + 128  # in scratch, behind the columns: what a search keeps
LITTLE = 2.0**-20  # of the largest importance: what a column without any has, so that no sum is zero


def emit_transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Sixteen vectors of sixteen lanes as a matrix, transposed: pairs of rows swap blocks of 1, 2, 4 and 8 lanes."""
    for size in (1, 2, 4, 8):
        low = [lane if not lane & size else 16 + lane - size for lane in range(16)]
        masks = [ir.Constant(ir.VectorType(I32, 16), [lane + more for lane in low]) for more in (0, size)]
        for i in (i for i in range(16) if not i & size):
            pair = rows[i], rows[i + size]
            rows[i], rows[i + size] = (b.shuffle_vector(*pair, mask) for mask in masks)
    return rows


def transposed_word(length: int) -> Any:
    """The word transposed(x, count, out): groups of `length` floats that lie one after the other, side by side.

    Where there are less than sixteen, the last is repeated.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        x, count, out = args
        last = b.sub(count, I64(1))
        groups = [b.select(b.icmp_signed("<", I64(i), last), I64(i), last) for i in range(GROUPS)]
        starts = [b.add(x, b.mul(group, I64(4 * length))) for group in groups]
        for first in range(0, length, 16):
            rows = [emit_load(b, f32x16.llvm, b.add(start, I64(4 * first))) for start in starts]
            for column, value in enumerate(emit_transposed(b, rows), first):
                b.store(value, b.inttoptr(b.add(out, I64(64 * column)), f32x16.llvm.as_pointer()), align=4)
        return out

    @intrinsic
    def transposed(typingctx: Any, x: Any, count: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 3, emit)

    return transposed


def fold_word(neighbours: int) -> tuple[Any, Any]:
    """The words sum_of(v) and largest_of(v) of every 1, 8 or 16 lanes, in all of them; added in a fixed order."""
    swap1, swap2, swap4, swap8 = (lanes([lane ^ distance for lane in range(GROUPS)]) for distance in (1, 2, 4, 8))

    @inline
    def same(v: Any) -> Any:
        return v

    @inline
    def sum_of(v: Any) -> Any:
        v = v + swap1(v)
        v = v + swap2(v)
        v = v + swap4(v)
        return v + swap8(v) if neighbours == 16 else v

    @inline
    def largest_of(v: Any) -> Any:
        v = maximum(v, swap1(v))
        v = maximum(v, swap2(v))
        v = maximum(v, swap4(v))
        return maximum(v, swap8(v)) if neighbours == 16 else v

    return (same, same) if neighbours == 1 else (sum_of, largest_of)


def importance_word(length: int, neighbours: int) -> Any:
    """The word weigh(importance, count, out): the importance of every column side by side, and its sum over each group.

    In units of the largest among its neighbours; 1 for all where the address is 0.
    """
    transposed, (_, largest_of) = transposed_word(length), fold_word(neighbours)

    @inline
    def alike(out: int) -> Any:
        for column in range(length):
            store(out + 64 * column, every(1.0))
        return every(length)

    @inline
    def given(importance: int, count: int, out: int) -> Any:
        transposed(importance, count, out)
        most, total = every(0.0), every(0.0)
        for column in range(length):
            most = maximum(most, load(f32x16, out + 64 * column))
        _, inverse = units(largest_of(most))
        for column in range(length):
            w = fma(load(f32x16, out + 64 * column), inverse, every(LITTLE))
            store(out + 64 * column, w)
            total = total + w
        return total

    @inline
    def weigh(importance: int, count: int, out: int) -> Any:
        return given(importance, count, out) if importance else alike(out)

    return weigh


def units_word(length: int, neighbours: int) -> Any:
    """The word in_units(x, count, out): weights side by side, in units of the largest among their neighbours.

    Returns the unit, a power of two, and one over it.
    """
    transposed, (_, largest_of) = transposed_word(length), fold_word(neighbours)

    @inline
    def in_units(x: int, count: int, out: int) -> Any:
        transposed(x, count, out)
        most = every(0.0)
        for column in range(length):
            most = maximum(most, absolute(load(f32x16, out + 64 * column)))
        unit, inverse = units(largest_of(most))
        for column in range(length):
            store(out + 64 * column, load(f32x16, out + 64 * column) * inverse)
        return unit, inverse

    return in_units
