"""The products of a row's superblocks with one or more flat tokens, accumulated in registers."""

from functools import cache
from typing import Any

from numba import float32, int32

from quant.jit.vectors import convert, f32x8, fma, inline, load, make_shuffle, reduce_sum, splat, store
from quant.matmul.group_sums import make_group_sums
from quant.matmul.layout import ORDERS
from quant.packing.format_spec import FormatSpec


def make_add_superblock(spec: FormatSpec) -> Any:
    """Return the inlined function superblock(at, products, x_scale, x_sums, x_totals, acc): add a superblock's groups
    to the sums.
    """
    scales, mins, kind, zero = spec.scales, spec.mins, spec.scales_type, spec.zero_point
    int_kind = kind.with_element(int32)

    @inline
    def with_zero(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        zero_products = load(int_kind, x_totals) * splat(int_kind, int32(zero))
        return fma(convert(kind, products - zero_products) * x_scale, scales(at), acc)

    @inline
    def with_mins(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        acc = fma(convert(kind, products) * x_scale, scales(at), acc)
        return fma(mins(at), load(kind, x_sums), acc)

    return with_zero if zero else with_mins


@cache
def make_add_token(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function add(row, block, x, n, acc): add the products of one superblock and the token at x to
    the sums.
    """
    sums, superblock = make_group_sums(spec, passes), make_add_superblock(spec)
    groups, bytes_, order_at = spec.n_groups, len(ORDERS) * passes, passes * ORDERS.index(spec.order)
    for_group = make_shuffle([lane * 8 // groups for lane in range(groups)])

    @inline
    def add(at: int, block: int, x: int, columns: int, acc: Any) -> Any:
        numbers, ahead = x + bytes_ * columns, 4 * groups * block
        x_sums = numbers + (columns // 8 if groups == 8 else columns // 4)
        x_totals = numbers + (columns // 2 if groups == 8 else 5 * (columns // 8))
        x_scale, x_at = for_group(load(f32x8, numbers + 32 * block)), x + order_at * columns + 256 * block
        return superblock(at, sums(at, x_at, columns), x_scale, x_sums + ahead, x_totals + ahead, acc)

    return add


@cache
def make_token_sums(spec: FormatSpec, passes: int, count: int) -> tuple[Any, Any, Any]:
    """Return three inlined functions for `count` tokens, whose sums are a tuple of vectors.

    start() returns zeros, add(at, block, x, x_stride, columns, sums) adds a superblock, and deliver(sums, y, y_stride,
    add) stores or adds the total of each token.
    """
    kind, add_one = spec.scales_type, make_add_token(spec, passes)

    @inline
    def start() -> Any:
        return (splat(kind, float32(0.0)),)

    @inline
    def add(at: int, block: int, x: int, x_stride: int, columns: int, sums: Any) -> Any:
        return (add_one(at, block, x, columns, sums[0]),)

    @inline
    def store_totals(sums: Any, y: int, y_stride: int, add: int) -> None:
        result = reduce_sum(sums[0])
        store(y, result + load(float32, y) if add else result)

    if count == 1:
        return start, add, store_totals
    start_others, add_others, store_other_totals = make_token_sums(spec, passes, count - 1)

    @inline
    def start_all() -> Any:
        return start() + start_others()

    @inline
    def add_all(at: int, block: int, x: int, x_stride: int, columns: int, sums: Any) -> Any:
        others = add_others(at, block, x + x_stride, x_stride, columns, sums[1:])
        return add(at, block, x, x_stride, columns, sums) + others

    @inline
    def store_all_totals(sums: Any, y: int, y_stride: int, add: int) -> None:
        store_totals(sums, y, y_stride, add)
        store_other_totals(sums[1:], y + y_stride, y_stride, add)

    return start_all, add_all, store_all_totals
