"""Activations as whole numbers: what the dot product instructions eat. The layouts are those of `quant.layout`."""

from typing import Any

from numba import float32, int32, int64

from quant.cpu import target
from quant.layout import (
    LARGEST,
    MAGIC,
    ORDERS,
    SCALE,
    SHIFT,
    SUMS16,
    SUMS32,
    TOTALS16,
    TOTALS32,
    flat_bytes,
    record_bytes,
)
from quant.vectors import (
    Vector,
    absolute,
    bitcast,
    convert,
    extract,
    f32x16,
    i8x16,
    i32x8,
    i32x16,
    inline,
    join,
    largest,
    load,
    maximum,
    splat,
    store,
    total,
)

DEPTH = target().depth
TOGETHER = {4: i32x8, 8: Vector(int64, 4)}[DEPTH]  # 32 bytes
WIDEST = float32(2.0**127)  # 1 / x of a smaller x than its own inverse would be infinite


@inline
def high_part(q: Any) -> Any:
    """The multiple of 128 nearest to q, over 128."""
    return (q + splat(i32x16, int32(64))) >> splat(i32x16, int32(7))


@inline
def low_part(q: Any) -> Any:
    """What the high part leaves."""
    return q - (high_part(q) << splat(i32x16, int32(7)))


@inline
def coarse(scale: float) -> Any:
    """A scale whose last two bits are 0, so that MAGIC, which is 3 * 2^22, times it is exact."""
    return bitcast(float32, int32(bitcast(int32, scale) & int32(-4)))


def bytes_word(tile: int, passes: int) -> Any:
    """The word put_bytes(q0, q1, place): the bytes of a group of a tiled token, as many at a time as the depth."""

    @inline
    def put_pass(q0: Any, q1: Any, place: int) -> None:
        neighbours = bitcast(TOGETHER, join(convert(i8x16, q0), convert(i8x16, q1)))
        for step in range(32 // DEPTH):
            store(place + DEPTH * tile * step, extract(neighbours, int64(step)))

    @inline
    def two(q0: Any, q1: Any, place: int) -> None:
        put_pass(high_part(q0), high_part(q1), place)
        put_pass(low_part(q0), low_part(q1), place + 32 * tile)

    return {1: put_pass, 2: two}[passes]


def orders_word(passes: int) -> Any:
    """The word put_orders(q0, q1, place, group, n): the bytes of a group of a flat token, in all orders."""
    columns, pairs, halves = (passes * ORDERS.index(name) for name in ("columns", "pairs", "halves"))

    @inline
    def put_pass(first: Any, second: Any, place: int, group: int, n: int) -> None:
        store(place + columns * n + 32 * group, join(first, second))
        if group < n // 256 * 8:
            four = 128 * (group // 4)
            slot = (group & 1) * 2 + (group >> 1 & 1)
            store(place + pairs * n + four + 32 * slot, join(first, second))
            half = place + halves * n + four + 16 * (group & 3)
            store(half, first)
            store(half + 64, second)

    @inline
    def one(q0: Any, q1: Any, place: int, group: int, n: int) -> None:
        put_pass(convert(i8x16, q0), convert(i8x16, q1), place, group, n)

    @inline
    def two(q0: Any, q1: Any, place: int, group: int, n: int) -> None:
        put_pass(convert(i8x16, high_part(q0)), convert(i8x16, high_part(q1)), place, group, n)
        put_pass(convert(i8x16, low_part(q0)), convert(i8x16, low_part(q1)), place + n, group, n)

    return {1: one, 2: two}[passes]


def flat_word(passes: int) -> Any:
    """The word that writes a group of a flat token: see `group_word`."""
    put_orders, size, bytes_ = orders_word(passes), flat_bytes(1, passes), len(ORDERS) * passes

    @inline
    def flat(q0: Any, q1: Any, scale: float, out: int, token: int, group: int, n: int) -> None:
        total0, total1 = total(q0), total(q1)
        sum0, sum1 = scale * float32(total0), scale * float32(total1)
        put_orders(q0, q1, out + token * size * n, group, n)
        numbers = out + token * size * n + bytes_ * n
        store(numbers + 4 * group, scale)
        store(numbers + n // 8 + 4 * group, sum0 + sum1)
        store(numbers + n // 4 + 8 * group, sum0)
        store(numbers + n // 4 + 8 * group + 4, sum1)
        store(numbers + n // 2 + 4 * group, int32(total0 + total1))
        store(numbers + 5 * (n // 8) + 8 * group, total0)
        store(numbers + 5 * (n // 8) + 8 * group + 4, total1)

    return flat


def tiled_word(tile: int, passes: int) -> Any:
    """The word that writes a group of a token in its tile: see `group_word`."""
    put_bytes, size, row = bytes_word(tile, passes), record_bytes(tile, passes), 4 * tile

    @inline
    def tiled(q0: Any, q1: Any, scale: float, out: int, token: int, group: int, n: int) -> None:
        total0, total1 = total(q0), total(q1)
        sum0, sum1 = scale * float32(total0), scale * float32(total1)
        record, within = out + (token // tile * (n // 32) + group) * size, token % tile
        put_bytes(q0, q1, record + DEPTH * within)
        numbers = record + passes * 32 * tile + 4 * within
        store(numbers + row * SCALE, scale)
        store(numbers + row * SHIFT, scale * float32(-MAGIC))
        store(numbers + row * SUMS32, sum0 + sum1)
        store(numbers + row * SUMS16, sum0)
        store(numbers + row * (SUMS16 + 1), sum1)
        store(numbers + row * TOTALS32, int32(total0 + total1))
        store(numbers + row * TOTALS16, total0)
        store(numbers + row * (TOTALS16 + 1), total1)

    return tiled


def group_word(tile: int, passes: int) -> Any:
    """The word quantize_group(v0, v1, out, token, group, n): 32 values (two f32x16), a group of the n of a token, into
    the batch at `out`.

    A value that is not finite makes the scale NaN, and so everything that is computed from it.
    """
    write, top = tiled_word(tile, passes) if tile else flat_word(passes), float32(LARGEST[passes])

    @inline
    def quantize_group(v0: Any, v1: Any, out: int, token: int, group: int, n: int) -> None:
        peak = largest(maximum(absolute(v0), absolute(v1)))
        zero = splat(f32x16, float32(0.0))
        tainted = total(v0 * zero + v1 * zero)
        inverse = min(top / peak, WIDEST) if peak > float32(0.0) else float32(0.0)
        q0 = convert(i32x16, v0 * splat(f32x16, inverse))
        q1 = convert(i32x16, v1 * splat(f32x16, inverse))
        write(q0, q1, coarse(peak / top) + tainted, out, token, group, n)

    return quantize_group


def row_word(tile: int, passes: int) -> Any:
    """The word quantize_row(x, out, token, n): the n floats at x, a token, into the batch at `out`."""
    quantize_group = group_word(tile, passes)

    @inline
    def quantize_row(x: int, out: int, token: int, n: int) -> None:
        for group in range(n // 32):
            v0, v1 = load(f32x16, x + 128 * group), load(f32x16, x + 128 * group + 64)
            quantize_group(v0, v1, out, token, group, n)

    return quantize_row


def quantize(tile: int, passes: int) -> Any:
    """The kernel that quantizes the rows of x, laid out for tiles of that many tokens, or flat for 0."""
    quantize_row = row_word(tile, passes)

    def body(tokens, x, n, out, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            quantize_row(x + 4 * n * token, out, token, n)

    return body
