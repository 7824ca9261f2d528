"""Reductions over lanes: from products of a few columns to sums of whole groups, and from four vectors to one.

All but `sum_four_vectors` operate on integers, so the order of additions affects speed but no bit of the result.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from quant.jit.emit import I32, call_intrinsic, intrinsic_suffix, split_halves
from quant.jit.emit_numeric import FLOAT_TYPES
from quant.jit.simd import emit_pair_sums
from quant.jit.vectors import i32x8, intrinsic, lowering


def emit_shuffle(b: ir.IRBuilder, v: ir.Value, lanes_: Sequence[int]) -> ir.Value:
    """Return the given lanes of a vector."""
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, len(lanes_)), list(lanes_)))


def make_quarter_sums(sources: Sequence[tuple[int, int]], largest: int) -> Any:
    """Return an inlined function for the sums of each four neighbours in four i32x16.

    Each of `sources` is a vector and the quarter of it whose sum becomes a lane of the result. No lane is larger than
    `largest`.
    """

    @intrinsic
    def sums(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            ab, cd = emit_pair_sums(bld, args[0], args[1], largest), emit_pair_sums(bld, args[2], args[3], largest)
            every = emit_pair_sums(bld, ab, cd, 2 * largest)
            return emit_shuffle(bld, every, [4 * quarter + vector for vector, quarter in sources])

        return lowering(a, [a, b, c, d], emit)

    return sums


def make_sums_of_eights(largest: int) -> Any:
    """Return an inlined function for the sums of the lower eight lanes of a, b, c and d, then of their upper eight.

    It maps four i32x16 to an i32x8. No lane is larger than `largest`.
    """

    @intrinsic
    def sums(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            ab, cd = emit_pair_sums(bld, args[0], args[1], largest), emit_pair_sums(bld, args[2], args[3], largest)
            every = emit_pair_sums(bld, ab, cd, 2 * largest)
            even = emit_shuffle(bld, every, [0, 1, 2, 3, 8, 9, 10, 11])
            return bld.add(even, emit_shuffle(bld, every, [4, 5, 6, 7, 12, 13, 14, 15]))

        return lowering(i32x8, [a, b, c, d], emit)

    return sums


def make_sums_of_two_vectors(sources: Sequence[tuple[int, int]], largest: int) -> Any:
    """Return an inlined function for the sums of each four neighbours in two i32x16, as an i32x8: see
    `make_quarter_sums`.
    """
    order = [4 * (quarter % 2) + 2 * (quarter // 2) + vector for vector, quarter in sources]

    @intrinsic
    def sums(typingctx: Any, a: Any, b: Any) -> Any:
        def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            low, high = split_halves(bld, emit_pair_sums(bld, args[0], args[1], largest))
            return emit_shuffle(bld, emit_pair_sums(bld, low, high, 2 * largest), order)

        return lowering(i32x8, [a, b], emit)

    return sums


def emit_reduce_four(
    b: ir.IRBuilder, vectors: Sequence[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Reduce four vectors of 16 lanes to one number each, which fills a quarter of the result."""

    def folded(v: ir.Value, w: ir.Value, first: Sequence[int], second: Sequence[int]) -> ir.Value:
        kind = ir.VectorType(I32, 16)
        halves = (b.shuffle_vector(v, w, ir.Constant(kind, list(half))) for half in (first, second))
        return combine(*halves)

    v0, v1, v2, v3 = vectors
    eights, quarters = [*range(8), *range(16, 24)], [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    low = folded(v0, v1, eights, [lane + 8 for lane in eights])
    high = folded(v2, v3, eights, [lane + 8 for lane in eights])
    v = folded(low, high, quarters, [lane + 4 for lane in quarters])
    for distance in (2, 1):
        v = folded(v, v, range(16), [lane ^ distance for lane in range(16)])
    return v


@intrinsic
def sum_four_vectors(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the sums of the lanes of a, b, c and d, vectors of 16 lanes, each in four lanes of the result."""
    add = "fadd" if a.element in FLOAT_TYPES else "add"
    return lowering(a, [a, b, c, d], lambda bld, args: emit_reduce_four(bld, args, getattr(bld, add)))


@intrinsic
def max_four_vectors(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the largest lanes of a, b, c and d, f32x16, each in four lanes of the result."""

    def emit(bld: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        def larger(x: ir.Value, y: ir.Value) -> ir.Value:
            return call_intrinsic(bld, f"llvm.maxnum.{intrinsic_suffix(x.type)}", x.type, [x, y])

        return emit_reduce_four(bld, args, larger)

    return lowering(a, [a, b, c, d], emit)
