"""Sums over lanes: how the products of a few columns each become those of whole groups, and four sums become one.

All but `sums_of_four` are of integers, so that the order of additions, chosen for what it costs, changes no bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from quant.jit.emit import I32, call_llvm, halves, suffix
from quant.jit.simd import emit_pair_sums
from quant.jit.vectors import FLOATS, i32x8, intrinsic, word


def emit_lanes(b: ir.IRBuilder, v: ir.Value, lanes_: Sequence[int]) -> ir.Value:
    """Some lanes of a vector."""
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, len(lanes_)), list(lanes_)))


def sums_of_fours(places: Sequence[tuple[int, int]], largest: int) -> Any:
    """A word for the sums of every four neighbours in four i32x16; a place says of which vector, and which four of it,
    a lane of the result is the sum. No lane is larger than `largest`."""

    @intrinsic
    def sums(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            ab, cd = emit_pair_sums(bld, args[0], args[1], largest), emit_pair_sums(bld, args[2], args[3], largest)
            every = emit_pair_sums(bld, ab, cd, 2 * largest)
            return emit_lanes(bld, every, [4 * part + vector for vector, part in places])

        return word(a, [a, b, c, d], emit)

    return sums


def sums_of_eights(largest: int) -> Any:
    """A word for the sums of the lower eight lanes of a, b, c and d, then of their upper eight: i32x8 of four i32x16.
    No lane is larger than `largest`."""

    @intrinsic
    def sums(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            ab, cd = emit_pair_sums(bld, args[0], args[1], largest), emit_pair_sums(bld, args[2], args[3], largest)
            every = emit_pair_sums(bld, ab, cd, 2 * largest)
            even = emit_lanes(bld, every, [0, 1, 2, 3, 8, 9, 10, 11])
            return bld.add(even, emit_lanes(bld, every, [4, 5, 6, 7, 12, 13, 14, 15]))

        return word(i32x8, [a, b, c, d], emit)

    return sums


def sums_of_two(places: Sequence[tuple[int, int]], largest: int) -> Any:
    """A word for the sums of every four neighbours in two i32x16: i32x8; places and `largest` as in `sums_of_fours`."""
    order = [4 * (part % 2) + 2 * (part // 2) + vector for vector, part in places]

    @intrinsic
    def sums(typingctx: Any, a: Any, b: Any) -> Any:
        def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            low, high = halves(bld, emit_pair_sums(bld, args[0], args[1], largest))
            return emit_lanes(bld, emit_pair_sums(bld, low, high, 2 * largest), order)

        return word(i32x8, [a, b], emit)

    return sums


def emit_fold_four(
    b: ir.IRBuilder, vectors: Sequence[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Four vectors of 16 lanes, each folded to one number, which fills a quarter of the result."""

    def folded(v: ir.Value, w: ir.Value, first: Sequence[int], second: Sequence[int]) -> ir.Value:
        kind = ir.VectorType(I32, 16)
        halves = (b.shuffle_vector(v, w, ir.Constant(kind, list(half))) for half in (first, second))
        return combine(*halves)

    v0, v1, v2, v3 = vectors
    eights, quarters = [*range(8), *range(16, 24)], [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    low = folded(v0, v1, eights, [lane + 8 for lane in eights])
    high = folded(v2, v3, eights, [lane + 8 for lane in eights])
    v = folded(low, high, quarters, [lane + 4 for lane in quarters])
    for apart in (2, 1):
        v = folded(v, v, range(16), [lane ^ apart for lane in range(16)])
    return v


@intrinsic
def sums_of_four(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of a, b, c and d, vectors of 16 lanes, each in four lanes of the result."""
    add = "fadd" if a.element in FLOATS else "add"
    return word(a, [a, b, c, d], lambda bld, args: emit_fold_four(bld, args, getattr(bld, add)))


@intrinsic
def largest_of_four(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The largest lanes of a, b, c and d, f32x16, each in four lanes of the result."""

    def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        def larger(x: ir.Value, y: ir.Value) -> ir.Value:
            return call_llvm(bld, f"llvm.maxnum.{suffix(x.type)}", x.type, [x, y])

        return emit_fold_four(bld, args, larger)

    return word(a, [a, b, c, d], emit)
