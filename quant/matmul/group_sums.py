"""Integer dot products of a superblock's codes and activations: one sum for each group of columns."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import int32

from quant.jit.cpu import target
from quant.jit.emit import I32, I64, concat_all, constant, emit_load, slice_lanes
from quant.jit.simd import emit_dot4, emit_pair_sums, emit_sdot
from quant.jit.vectors import (
    Vector,
    i8x64,
    i32x16,
    inline,
    intrinsic,
    load,
    lowering,
    make_dot4,
    make_shuffle,
    splat,
)
from quant.matmul.reductions import make_quarter_sums, make_sums_of_eights, make_sums_of_two_vectors
from quant.packing.format_spec import FormatSpec


def multiplies_signed_codes(spec: FormatSpec) -> bool:
    """Return whether the dot products are those of codes minus the zero point."""
    return spec.signed_codes is not None and target().has_signed_dot


def make_dot(kind: Any, x_kind: Any, dot4_: Any, passes: int) -> Any:
    """Return the inlined function dot(codes, x, n): products of codes and activations, four columns per lane.

    The activations of the two passes lie n bytes apart.
    """

    @inline
    def once(codes: Any, x: int, n: int) -> Any:
        return dot4_(splat(kind, int32(0)), codes, load(x_kind, x))

    @inline
    def twice(codes: Any, x: int, n: int) -> Any:
        high = dot4_(splat(kind, int32(0)), codes, load(x_kind, x))
        return dot4_(high << splat(kind, int32(7)), codes, load(x_kind, x + n))

    return {1: once, 2: twice}[passes]


def make_dot128(dot4_: Any, passes: int) -> Any:
    """Return the inlined function two_dots(a, b, x, n): products of 128 codes and activations, eight
    columns per lane.
    """

    @inline
    def add(start: Any, a: Any, b: Any, x: int) -> Any:
        return dot4_(dot4_(start, a, load(i8x64, x)), b, load(i8x64, x + 64))

    @inline
    def once(a: Any, b: Any, x: int, n: int) -> Any:
        return add(splat(i32x16, int32(0)), a, b, x)

    @inline
    def twice(a: Any, b: Any, x: int, n: int) -> Any:
        high = add(splat(i32x16, int32(0)), a, b, x)
        return add(high << splat(i32x16, int32(7)), a, b, x + n)

    return {1: once, 2: twice}[passes]


# The location of the sum of each group of 16 columns, for each order of columns: the vector, and the quarter of it.
GROUP16_SOURCES = {
    "columns": [(group // 4, group % 4) for group in range(16)],
    "pairs": [(group // 2 % 4, group // 8 * 2 + group % 2) for group in range(16)],
}


# The same for groups of 32, after the two halves of a group have been added.
GROUP32_SOURCES = {
    "halves": [(group // 4, group % 4) for group in range(8)],
    "evens": [(group % 2, group // 2) for group in range(8)],
}


def sums_rows_together(spec: FormatSpec) -> bool:
    """Return whether the sums of two rows share their additions, which then operate on whole registers of 64 bytes."""
    return target().has_512_bit_vectors and spec.group_size == 32 and spec.order in GROUP32_SOURCES


# The pieces of each group of 32 columns for registers of sixteen bytes: the quarter of the superblock, and the sixteen
# columns of it.
GROUP32_PIECES = {
    "columns": [[(group // 2, group % 2 * 2 + half) for half in range(2)] for group in range(8)],
    "halves": [[(group // 4 * 2 + half, group % 4) for half in range(2)] for group in range(8)],
    "evens": [[(group % 2 * 2 + half, group // 2) for half in range(2)] for group in range(8)],
    "pairs": [[(group % 4, group // 4 * 2 + half) for half in range(2)] for group in range(8)],
}


def make_sums_by_register(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function of `make_group_sums` for registers of sixteen bytes.

    The sums of a group stay in one register. Adding up neighbours in pairs of groups leaves the groups in order.
    """
    signed = multiplies_signed_codes(spec)
    ordered = spec.signed_codes if signed else spec.ordered_codes or spec.codes64
    sixteens = [[source] for source in GROUP16_SOURCES.get(spec.order, [])]
    pieces = sixteens if spec.group_size == 16 else GROUP32_PIECES[spec.order]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        *quarters, x, n = args

        def add_products(acc: ir.Value, quarter: int, piece: int, distance: ir.Value) -> ir.Value:
            codes = slice_lanes(b, quarters[quarter], 16 * piece, 16)
            values = emit_load(b, codes.type, b.add(x, b.add(distance, I64(64 * quarter + 16 * piece))))
            return emit_sdot(b, acc, codes, values) if signed else emit_dot4(b, acc, codes, values, spec.bits)

        sums = []
        for sources in pieces:
            acc = constant(ir.VectorType(I32, 4), 0)
            for one_pass in range(passes):
                acc = b.shl(acc, constant(acc.type, 7)) if one_pass else acc
                for quarter, piece in sources:
                    acc = add_products(acc, quarter, piece, n if one_pass else I64(0))
            sums.append(acc)
        pairs = [emit_pair_sums(b, v, w, 1 << 31) for v, w in zip(sums[::2], sums[1::2], strict=True)]
        return concat_all(b, [emit_pair_sums(b, v, w, 1 << 31) for v, w in zip(pairs[::2], pairs[1::2], strict=True)])

    @intrinsic
    def dots(typingctx: Any, q0: Any, q1: Any, q2: Any, q3: Any, x: Any, n: Any) -> Any:
        return lowering(Vector(int32, len(pieces)), [q0, q1, q2, q3, x, n], emit)

    @inline
    def sums(block: int, x: int, n: int) -> Any:
        return dots(ordered(block, 0), ordered(block, 1), ordered(block, 2), ordered(block, 3), x, n)

    return sums


def make_group_sums(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function sums(superblock, x, n): the exact dot product of each group's codes, one group per
    lane. The codes are signed if `multiplies_signed_codes` says so.
    """
    if target().has_signed_dot:
        return make_sums_by_register(spec, passes)
    dot4_, ordered = make_dot4(spec.bits), spec.ordered_codes or spec.codes64
    dot, two_dots = make_dot(i32x16, i8x64, dot4_, passes), make_dot128(dot4_, passes)
    peak = 4 * (2**spec.bits - 1) * 128 if passes == 1 else 1 << 31
    sixteen_sums = make_quarter_sums(GROUP16_SOURCES[spec.order if spec.group_size == 16 else "columns"], peak)
    eight_sums, two_sums = (
        make_sums_of_eights(peak),
        make_sums_of_two_vectors(GROUP32_SOURCES.get(spec.order, []), 2 * peak),
    )
    from_columns = make_shuffle([0, 4, 1, 5, 2, 6, 3, 7])

    @inline
    def quarter(block: int, j: int, x: int, n: int) -> Any:
        return dot(ordered(block, j), x + 64 * j, n)

    @inline
    def sixteens(block: int, x: int, n: int) -> Any:
        a, b = quarter(block, 0, x, n), quarter(block, 1, x, n)
        return sixteen_sums(a, b, quarter(block, 2, x, n), quarter(block, 3, x, n))

    @inline
    def eights(block: int, x: int, n: int) -> Any:
        a, b = quarter(block, 0, x, n), quarter(block, 1, x, n)
        return eight_sums(a, b, quarter(block, 2, x, n), quarter(block, 3, x, n))

    @inline
    def columns(block: int, x: int, n: int) -> Any:
        return from_columns(eights(block, x, n))

    @inline
    def quarters(block: int, x: int, n: int) -> Any:
        first = two_dots(ordered(block, 0), ordered(block, 1), x, n)
        return two_sums(first, two_dots(ordered(block, 2), ordered(block, 3), x + 128, n))

    by_order = {"columns": columns, "halves": quarters, "evens": quarters, "pairs": eights}
    return sixteens if spec.group_size == 16 else by_order[spec.order]


def make_sums_of_two_rows(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function sums(superblock, other, x, n): the exact dot products of the groups of two rows'
    superblocks, i32x16, for formats that `sums_rows_together`.
    """
    ordered, two_dots = spec.ordered_codes or spec.codes64, make_dot128(make_dot4(spec.bits), passes)
    of_one = GROUP32_SOURCES[spec.order]
    peak = 8 * (2**spec.bits - 1) * 128 if passes == 1 else 1 << 31
    every = make_quarter_sums([*of_one, *((vector + 2, quarter) for vector, quarter in of_one)], peak)

    @inline
    def sums(block: int, other: int, x: int, n: int) -> Any:
        a = two_dots(ordered(block, 0), ordered(block, 1), x, n)
        b = two_dots(ordered(block, 2), ordered(block, 3), x + 128, n)
        c = two_dots(ordered(other, 0), ordered(other, 1), x, n)
        return every(a, b, c, two_dots(ordered(other, 2), ordered(other, 3), x + 128, n))

    return sums
