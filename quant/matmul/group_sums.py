"""Integer dot products of a superblock's codes and activations: one sum for each group of columns."""

from typing import Any

from numba import int32

from quant.jit.vectors import i8x64, i32x16, inline, load, make_dot4, make_shuffle, splat
from quant.matmul.reductions import make_quarter_sums, make_sums_of_eights, make_sums_of_two_vectors
from quant.packing.format_spec import FormatSpec


def make_dot(kind: Any, x_kind: Any, bits: int, passes: int) -> Any:
    """Return the inlined function dot(codes, x, n): products of codes and activations, four columns per lane.

    The activations of the two passes lie n bytes apart.
    """
    dot4_ = make_dot4(bits)

    @inline
    def once(codes: Any, x: int, n: int) -> Any:
        return dot4_(splat(kind, int32(0)), codes, load(x_kind, x))

    @inline
    def twice(codes: Any, x: int, n: int) -> Any:
        high = dot4_(splat(kind, int32(0)), codes, load(x_kind, x))
        return dot4_(high << splat(kind, int32(7)), codes, load(x_kind, x + n))

    return {1: once, 2: twice}[passes]


def make_dot128(bits: int, passes: int) -> Any:
    """Return the inlined function two_dots(a, b, x, n): products of 128 codes and activations, eight
    columns per lane.
    """
    dot4_ = make_dot4(bits)

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


def make_group_sums(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function sums(superblock, x, n): the exact dot product of each group's codes, one group per
    lane.
    """
    dot, ordered = make_dot(i32x16, i8x64, spec.bits, passes), spec.ordered_codes or spec.codes64
    two_dots = make_dot128(spec.bits, passes)
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
