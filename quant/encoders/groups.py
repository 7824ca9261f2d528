"""Sixteen groups of columns side by side: the memory layout that the searches for scales work on.

A group is a number of columns that share one scale. Each SIMD lane holds one group: sixteen adjacent groups of a row
are transposed to out[column][group]. So a search never reduces across lanes, and all its variables are vectors.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from quant.encoders.encoder import GROUPS
from quant.encoders.objective import make_emphasize
from quant.encoders.vector_math import broadcast, make_reductions, power_of_two_units
from quant.jit.emit import I32, I64, emit_load
from quant.jit.vectors import absolute, f32x16, fma, inline, intrinsic, load, lowering, maximum, store

WEIGHTS, NUMBERS, FREE = 64 * 32, 2 * 64 * 32, 2 * 64 * 32 + 128  # offsets in scratch memory, after the columns
MIN_IMPORTANCE = 2.0**-20  # relative to the largest importance, so that no sum is zero


def emit_transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Emit the transpose of a 16x16 matrix: pairs of rows swap blocks of 1, 2, 4 and 8 lanes."""
    for size in (1, 2, 4, 8):
        low = [lane if not lane & size else 16 + lane - size for lane in range(16)]
        masks = [ir.Constant(ir.VectorType(I32, 16), [lane + more for lane in low]) for more in (0, size)]
        for i in (i for i in range(16) if not i & size):
            pair = rows[i], rows[i + size]
            rows[i], rows[i + size] = (b.shuffle_vector(*pair, mask) for mask in masks)
    return rows


def make_group_transpose(length: int, pitch: int = 4 * GROUPS) -> Any:
    """Make the inlined function transpose(x, stride, count, out).

    It lays out groups of `length` float32 side by side. `stride` is the distance between groups in bytes, `pitch` that
    between output columns. If there are fewer than sixteen groups, the last one is repeated.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        x, stride, count, out = args
        last = b.sub(count, I64(1))
        groups = [b.select(b.icmp_signed("<", I64(i), last), I64(i), last) for i in range(GROUPS)]
        starts = [b.add(x, b.mul(group, stride)) for group in groups]
        for first in range(0, length, 16):
            rows = [emit_load(b, f32x16.llvm, b.add(start, I64(4 * first))) for start in starts]
            for column, value in enumerate(emit_transpose(b, rows), first):
                b.store(value, b.inttoptr(b.add(out, I64(pitch * column)), f32x16.llvm.as_pointer()), align=4)
        return out

    @intrinsic
    def transpose(typingctx: Any, x: Any, stride: Any, count: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 4, emit)

    return transpose


def make_weigh(length: int, neighbours: int, emphasis: float = 1.0) -> Any:
    """Make the inlined function weigh(importance, count, columns, out).

    It computes the error weights of sixteen groups: it scales the importance by the largest one of the superblock, or
    takes 1 for all columns if the address is 0, and applies `quant.encoders.objective` with the factor `emphasis`. The
    model's weights must already be at `columns`. The function returns the sum of the error weights of each group.
    """
    transpose, (_, largest_of) = make_group_transpose(length), make_reductions(neighbours)
    emphasize = make_emphasize(length, neighbours, emphasis)

    @inline
    def fill_uniform(out: int) -> None:
        for column in range(length):
            store(out + 64 * column, broadcast(1.0))

    @inline
    def load_normalized(importance: int, count: int, out: int) -> None:
        transpose(importance, 4 * length, count, out)
        most = broadcast(0.0)
        for column in range(length):
            most = maximum(most, load(f32x16, out + 64 * column))
        _, inverse = power_of_two_units(largest_of(most))
        for column in range(length):
            store(out + 64 * column, fma(load(f32x16, out + 64 * column), inverse, broadcast(MIN_IMPORTANCE)))

    @inline
    def weigh(importance: int, count: int, columns: int, out: int) -> Any:
        if importance:
            load_normalized(importance, count, out)
        else:
            fill_uniform(out)
        return emphasize(columns, out)

    return weigh


def make_normalize(length: int, neighbours: int) -> Any:
    """Make the inlined function normalize(x, count, out).

    It lays out weights side by side, scaled by a power of two. The unit is derived from the largest magnitude of the
    superblock. The function returns the unit and its reciprocal.
    """
    transpose, (_, largest_of) = make_group_transpose(length), make_reductions(neighbours)

    @inline
    def normalize(x: int, count: int, out: int) -> Any:
        transpose(x, 4 * length, count, out)
        most = broadcast(0.0)
        for column in range(length):
            most = maximum(most, absolute(load(f32x16, out + 64 * column)))
        unit, inverse = power_of_two_units(largest_of(most))
        for column in range(length):
            store(out + 64 * column, load(f32x16, out + 64 * column) * inverse)
        return unit, inverse

    return normalize
