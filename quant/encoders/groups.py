"""Groups of columns side by side: what the searches for their scales work on.

A search works on groups of columns that have one scale each. A lane is a group: sixteen neighbours of a row are laid
out as out[column][group], so that no step of a search adds up lanes, and every number of a search is a vector.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from quant.encoders.encode import GROUPS
from quant.encoders.encoding import every, fold_word, units
from quant.encoders.objective import emphasis_word
from quant.jit.emit import I32, I64, emit_load
from quant.jit.vectors import absolute, f32x16, fma, inline, intrinsic, load, maximum, store, word

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


def transposed_word(length: int, pitch: int = 4 * GROUPS) -> Any:
    """The word transposed(x, stride, count, out): groups of `length` floats, so many bytes apart, side by side; each
    column `pitch` bytes behind the one before it.

    Where there are less than sixteen, the last is repeated.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        x, stride, count, out = args
        last = b.sub(count, I64(1))
        groups = [b.select(b.icmp_signed("<", I64(i), last), I64(i), last) for i in range(GROUPS)]
        starts = [b.add(x, b.mul(group, stride)) for group in groups]
        for first in range(0, length, 16):
            rows = [emit_load(b, f32x16.llvm, b.add(start, I64(4 * first))) for start in starts]
            for column, value in enumerate(emit_transposed(b, rows), first):
                b.store(value, b.inttoptr(b.add(out, I64(pitch * column)), f32x16.llvm.as_pointer()), align=4)
        return out

    @intrinsic
    def transposed(typingctx: Any, x: Any, stride: Any, count: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return transposed


def importance_word(length: int, neighbours: int, part: float = 1.0) -> Any:
    """The word weigh(importance, count, columns, out): what errors count, side by side, and its sum over each group.

    The importance, in units of the largest among its neighbours, or 1 for all where the address is 0, makes it what
    `quant.encoders.objective` says, with so large a `part` of the share; the weights lie at `columns` already.
    """
    transposed, (_, largest_of) = transposed_word(length), fold_word(neighbours)
    emphasize = emphasis_word(length, neighbours, part)

    @inline
    def alike(out: int) -> None:
        for column in range(length):
            store(out + 64 * column, every(1.0))

    @inline
    def given(importance: int, count: int, out: int) -> None:
        transposed(importance, 4 * length, count, out)
        most = every(0.0)
        for column in range(length):
            most = maximum(most, load(f32x16, out + 64 * column))
        _, inverse = units(largest_of(most))
        for column in range(length):
            store(out + 64 * column, fma(load(f32x16, out + 64 * column), inverse, every(LITTLE)))

    @inline
    def weigh(importance: int, count: int, columns: int, out: int) -> Any:
        if importance:
            given(importance, count, out)
        else:
            alike(out)
        return emphasize(columns, out)

    return weigh


def units_word(length: int, neighbours: int) -> Any:
    """The word in_units(x, count, out): weights side by side, in units of the largest among their neighbours.

    Returns the unit, a power of two, and one over it.
    """
    transposed, (_, largest_of) = transposed_word(length), fold_word(neighbours)

    @inline
    def in_units(x: int, count: int, out: int) -> Any:
        transposed(x, 4 * length, count, out)
        most = every(0.0)
        for column in range(length):
            most = maximum(most, absolute(load(f32x16, out + 64 * column)))
        unit, inverse = units(largest_of(most))
        for column in range(length):
            store(out + 64 * column, load(f32x16, out + 64 * column) * inverse)
        return unit, inverse

    return in_units
