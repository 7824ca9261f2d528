"""The products of a row's superblocks with one or more flat tokens, accumulated in memory that stays in the first-level
cache."""

from functools import cache
from typing import Any

from numba import float32, int32

from quant.jit.vectors import convert, f32x8, fma, inline, load, make_shuffle, reduce_sum, splat, store
from quant.matmul.group_sums import make_group_sums, multiplies_signed_codes
from quant.matmul.layout import ORDERS
from quant.packing.format_spec import FormatSpec


def make_add_superblock(spec: FormatSpec) -> Any:
    """Return the inlined function superblock(at, products, x_scale, x_sums, x_totals, acc): add a superblock's groups
    to the sums.
    """
    scales, mins, kind = spec.scales, spec.mins, spec.scales_type
    zero = 0 if multiplies_signed_codes(spec) else spec.zero_point
    int_kind = kind.with_element(int32)

    @inline
    def with_zero(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        zero_products = load(int_kind, x_totals) * splat(int_kind, int32(zero))
        return fma(convert(kind, products - zero_products) * x_scale, scales(at), acc)

    @inline
    def with_mins(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        acc = fma(convert(kind, products) * x_scale, scales(at), acc)
        return fma(mins(at), load(kind, x_sums), acc)

    @inline
    def without_zero(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        return fma(convert(kind, products) * x_scale, scales(at), acc)

    if mins:
        return with_mins
    return with_zero if zero else without_zero


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


def make_token_sums(spec: FormatSpec, passes: int, count: int) -> tuple[Any, Any, Any, Any]:
    """Return four inlined functions for `count` tokens, whose sums are vectors in memory, at the address `sums`.

    clear(sums) stores zeros, add(at, block, x, x_stride, columns, sums) adds a superblock, add_two(at, other, block, x,
    x_stride, columns, sums) adds superblocks of two rows to neighbouring sums, and store_totals(sums, y, y_stride, add)
    stores or adds the total of each token.
    """
    kind, updated = spec.scales_type, make_updated_sums(spec, passes, count)
    store_sums, size = make_store_sums(count), 4 * kind.lanes

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
    def store_totals(sums: int, y: int, y_stride: int, add: int) -> None:
        for token in range(count):
            result, out = reduce_sum(load(kind, sums + size * token)), y + token * y_stride
            store(out, result + load(float32, out) if add else result)

    return clear, add, add_two, store_totals


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
