"""The products of a row's superblocks with one or more flat tokens, accumulated in memory that stays in the first-level
cache."""

from functools import cache
from typing import Any

from numba import float32, int32

from quant.jit.vectors import (
    Vector,
    concat,
    convert,
    f32x8,
    f32x16,
    fma,
    inline,
    load,
    make_shuffle,
    reduce_sum,
    splat,
    store,
)
from quant.matmul.group_sums import (
    make_group_sums,
    make_sums_of_two_rows,
    multiplies_signed_codes,
    sums_rows_together,
)
from quant.matmul.layout import ORDERS
from quant.packing.format_spec import FormatSpec, make_scales


def make_add_groups(spec: FormatSpec, kind: Vector) -> Any:
    """Return the inlined function add_groups(products, scales, mins, x_scale, x_sums, x_totals, acc): add the groups of
    a superblock, or of several, to the sums.

    All are vectors with a lane for each group, of `kind` or, like products and totals, of integers.
    """
    zero, int_kind = 0 if multiplies_signed_codes(spec) else spec.zero_point, kind.with_element(int32)

    @inline
    def with_zero(products: Any, scales: Any, mins: Any, x_scale: Any, x_sums: Any, x_totals: Any, acc: Any) -> Any:
        zero_products = x_totals * splat(int_kind, int32(zero))
        return fma(convert(kind, products - zero_products) * x_scale, scales, acc)

    @inline
    def with_mins(products: Any, scales: Any, mins: Any, x_scale: Any, x_sums: Any, x_totals: Any, acc: Any) -> Any:
        return fma(mins, x_sums, fma(convert(kind, products) * x_scale, scales, acc))

    @inline
    def without_zero(products: Any, scales: Any, mins: Any, x_scale: Any, x_sums: Any, x_totals: Any, acc: Any) -> Any:
        return fma(convert(kind, products) * x_scale, scales, acc)

    if spec.mins:
        return with_mins
    return with_zero if zero else without_zero


@inline
def no_mins(*blocks: int) -> None:
    """Return nothing, for formats without mins."""


def make_group_numbers(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function group_numbers(x, block, columns): the scales, sums and totals of the token at x for
    the groups of a superblock.
    """
    groups, bytes_, kind = spec.n_groups, len(ORDERS) * passes, spec.scales_type
    int_kind, for_group = kind.with_element(int32), make_shuffle([lane * 8 // groups for lane in range(groups)])

    @inline
    def group_numbers(x: int, block: int, columns: int) -> Any:
        numbers, ahead = x + bytes_ * columns, 4 * groups * block
        sums_at = numbers + (columns // 8 if groups == 8 else columns // 4)
        totals_at = numbers + (columns // 2 if groups == 8 else 5 * (columns // 8))
        scales = for_group(load(f32x8, numbers + 32 * block))
        return scales, load(kind, sums_at + ahead), load(int_kind, totals_at + ahead)

    return group_numbers


@cache
def make_add_token(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function add(at, block, x, columns, acc): add the products of one superblock and the token at
    x to the sums.
    """
    sums, add_groups, group_numbers = (
        make_group_sums(spec, passes), make_add_groups(spec, spec.scales_type), make_group_numbers(spec, passes)
    )  # fmt: skip
    scales, mins, order_at = make_scales(spec), spec.mins or no_mins, passes * ORDERS.index(spec.order)

    @inline
    def add(at: int, block: int, x: int, columns: int, acc: Any) -> Any:
        x_scale, x_sums, x_totals = group_numbers(x, block, columns)
        products = sums(at, x + order_at * columns + 256 * block, columns)
        return add_groups(products, scales(at, block), mins(at), x_scale, x_sums, x_totals, acc)

    return add


def make_add_two_rows(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function add(at, other, block, x, columns, acc): add the products of two rows' superblocks and
    the token at x to the sums of both, f32x16, for formats that `sums_rows_together`. The bits are those of
    `make_add_token`.
    """
    sums, add_groups, group_numbers = (
        make_sums_of_two_rows(spec, passes), make_add_groups(spec, f32x16), make_group_numbers(spec, passes)
    )  # fmt: skip
    scales, mins, order_at = make_scales(spec), spec.mins, passes * ORDERS.index(spec.order)
    twice = make_shuffle([*range(8)] * 2)

    @inline
    def both_mins(at: int, other: int) -> Any:
        return concat(mins(at), mins(other))

    mins_of = both_mins if mins else no_mins

    @inline
    def add(at: int, other: int, block: int, x: int, columns: int, acc: Any) -> Any:
        x_scale, x_sums, x_totals = group_numbers(x, block, columns)
        products = sums(at, other, x + order_at * columns + 256 * block, columns)
        both_scales = concat(scales(at, block), scales(other, block))
        return add_groups(
            products, both_scales, mins_of(at, other), twice(x_scale), twice(x_sums), twice(x_totals), acc
        )

    return add


def make_token_sums(spec: FormatSpec, passes: int, count: int) -> tuple[Any, Any, Any, Any]:
    """Return four inlined functions for `count` tokens, whose sums are vectors in memory, at the address `sums`.

    clear(sums) stores zeros, add(at, block, x, x_stride, columns, sums) adds a superblock, add_two(at, other, block, x,
    x_stride, columns, sums) adds superblocks of two rows to neighbouring sums, and store_totals(sums, y, y_stride, add)
    stores or adds the total of each token.
    """
    kind, updated = spec.scales_type, make_updated_sums(spec, passes, count)
    store_sums, size, together = make_store_sums(count), 4 * kind.lanes, count == 1 and sums_rows_together(spec)
    add_two_rows: Any = make_add_two_rows(spec, passes) if together else None

    @inline
    def clear(sums: int) -> None:
        for token in range(count):
            store(sums + size * token, splat(kind, float32(0.0)))

    @inline
    def add(at: int, block: int, x: int, x_stride: int, columns: int, sums: int) -> None:
        store_sums(updated(at, block, x, x_stride, columns, sums), sums, size)

    @inline
    def add_two(at: int, other: int, block: int, x: int, x_stride: int, columns: int, sums: int) -> None:
        first = updated(at, block, x, x_stride, columns, sums)
        second = updated(other, block, x, x_stride, columns, sums + size * count)
        store_sums(first, sums, size)
        store_sums(second, sums + size * count, size)

    @inline
    def add_two_together(at: int, other: int, block: int, x: int, x_stride: int, columns: int, sums: int) -> None:
        store(sums, add_two_rows(at, other, block, x, columns, load(f32x16, sums)))

    @inline
    def store_totals(sums: int, y: int, y_stride: int, add: int) -> None:
        for token in range(count):
            result, out = reduce_sum(load(kind, sums + size * token)), y + token * y_stride
            store(out, result + load(float32, out) if add else result)

    return clear, add, add_two_together if together else add_two, store_totals


@cache
def make_updated_sums(spec: FormatSpec, passes: int, count: int) -> Any:
    """Return the inlined function updated(at, block, x, x_stride, columns, sums): the sums of `count` tokens with a
    superblock added, as a tuple.

    They are all computed before any is stored, so that the superblock's codes are unpacked only once.
    """
    kind, add_one = spec.scales_type, make_add_token(spec, passes)
    size = 4 * kind.lanes

    @inline
    def updated(at: int, block: int, x: int, x_stride: int, columns: int, sums: int) -> Any:
        return (add_one(at, block, x, columns, load(kind, sums)),)

    if count == 1:
        return updated
    update_others = make_updated_sums(spec, passes, count - 1)

    @inline
    def updated_all(at: int, block: int, x: int, x_stride: int, columns: int, sums: int) -> Any:
        first = updated(at, block, x, x_stride, columns, sums)
        return first + update_others(at, block, x + x_stride, x_stride, columns, sums + size)

    return updated_all


@cache
def make_store_sums(count: int) -> Any:
    """Return the inlined function store_sums(values, address, size), which stores `count` vectors of `size` bytes."""

    @inline
    def store_one(values: Any, address: int, size: int) -> None:
        store(address, values[0])

    if count == 1:
        return store_one
    store_others = make_store_sums(count - 1)

    @inline
    def store_all(values: Any, address: int, size: int) -> None:
        store_one(values, address, size)
        store_others(values[1:], address + size, size)

    return store_all
