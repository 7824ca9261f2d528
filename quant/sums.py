"""Sums of neighbouring lanes: how the products of a few columns each become those of whole groups.

Integers only, so that the order of additions, chosen for what it costs, changes no bit.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from quant.emit import I32
from quant.vectors import i32x8, intrinsic, word


@intrinsic
def neighbour_sums(typingctx: Any, v: Any, w: Any) -> Any:
    """v[0] + v[1], v[2] + v[3], ..., then the same of w."""
    every = ir.VectorType(I32, v.lanes)
    even = ir.Constant(every, list(range(0, 2 * v.lanes, 2)))
    odd = ir.Constant(every, list(range(1, 2 * v.lanes, 2)))
    return word(v, [v, w], lambda b, a: b.add(b.shuffle_vector(*a, even), b.shuffle_vector(*a, odd)))


def emit_pair_sums(b: ir.IRBuilder, v: ir.Value, w: ir.Value, step: int) -> ir.Value:
    """What lies `step` lanes apart, added, in every quarter of 16 lanes: v's sums, then w's.

    It costs little, because nothing leaves its 16 bytes.
    """
    first, second = ([0, 1, 4, 5], [2, 3, 6, 7]) if step == 2 else ([0, 2, 4, 6], [1, 3, 5, 7])

    def picked(lanes_: Sequence[int]) -> ir.Value:
        mask = [4 * part + lane % 4 + 16 * (lane // 4) for part in range(4) for lane in lanes_]
        return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, 16), mask))

    return b.add(picked(first), picked(second))


def emit_lanes(b: ir.IRBuilder, v: ir.Value, lanes_: Sequence[int]) -> ir.Value:
    """Some lanes of a vector."""
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, len(lanes_)), list(lanes_)))


@intrinsic
def sums_of_fours(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sum of every four neighbours of a, then of b, c and d: i32x16 of four i32x16."""

    def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        ab, cd = emit_pair_sums(bld, args[0], args[1], 2), emit_pair_sums(bld, args[2], args[3], 2)
        sums = emit_pair_sums(bld, ab, cd, 1)
        return emit_lanes(bld, sums, [4 * part + vector for vector in range(4) for part in range(4)])

    return word(a, [a, b, c, d], emit)


@intrinsic
def sums_of_eights(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of the lower eight lanes of a, b, c and d, then of their upper eight: i32x8 of four i32x16."""

    def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        ab, cd = emit_pair_sums(bld, args[0], args[1], 2), emit_pair_sums(bld, args[2], args[3], 2)
        sums = emit_pair_sums(bld, ab, cd, 1)
        even = emit_lanes(bld, sums, [0, 1, 2, 3, 8, 9, 10, 11])
        return bld.add(even, emit_lanes(bld, sums, [4, 5, 6, 7, 12, 13, 14, 15]))

    return word(i32x8, [a, b, c, d], emit)


@intrinsic
def sums_of_two(typingctx: Any, a: Any, b: Any) -> Any:
    """The sum of every four neighbours of a, then of b: i32x8 of two i32x16."""

    def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        pairs = emit_pair_sums(bld, args[0], args[1], 2)
        return emit_lanes(bld, emit_pair_sums(bld, pairs, pairs, 1), [0, 4, 8, 12, 1, 5, 9, 13])

    return word(i32x8, [a, b], emit)
