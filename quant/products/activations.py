"""Activations as whole numbers: what the dot product instructions eat. The layouts are those of
`quant.products.layout`.

Four groups are rounded side by side: what is one number for a group is then four lanes of a vector.
"""

from functools import cache
from typing import Any

from numba import float32, int32, int64

from quant.jit.cpu import target
from quant.jit.vectors import (
    Vector,
    absolute,
    bitcast,
    convert,
    extract,
    f32x16,
    fma,
    i8x16,
    i32x8,
    i32x16,
    inline,
    join,
    lanes,
    load,
    maximum,
    rint,
    select,
    splat,
    store,
)
from quant.products.layout import (
    LARGEST,
    MAGIC,
    MAGIC_BITS,
    ORDERS,
    PLACES,
    SCALE,
    SHIFT,
    STARTS16,
    STARTS32,
    SUMS16,
    SUMS32,
    ZERO,
    flat_bytes,
    record_bytes,
    record_number,
    slot_of,
    starts_with_magic,
    superblocks,
)
from quant.products.sums import largest_of_four, sums_of_four

DEPTH = target().depth
superblocks_of, slot, number_of = inline(superblocks), inline(slot_of), inline(record_number)
TOGETHER = {4: i32x8, 8: Vector(int64, 4)}[DEPTH]  # 32 bytes
SMALLEST = 2.0**-126  # scale: no smaller number has an inverse that is one, too
SECOND, THIRD = 126 / 127, 125 / 127  # a group in 8 bits is also tried with its peak at 126, and at 125

first_of_four, second_of_four, third_of_four, fourth_of_four = (lanes([lane] * 16) for lane in (0, 4, 8, 12))


@inline
def high_part(q: Any) -> Any:
    """The multiple of 128 nearest to q, over 128."""
    return (q + splat(i32x16, int32(64))) >> splat(i32x16, int32(7))


@inline
def low_part(q: Any) -> Any:
    """What the high part leaves."""
    return q - (high_part(q) << splat(i32x16, int32(7)))


@inline
def coarse(scale: Any) -> Any:
    """Scales whose last two bits are 0, so that MAGIC, which is 3 * 2^22, times them is exact."""
    return bitcast(f32x16, bitcast(i32x16, scale) & splat(i32x16, int32(-4)))


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
    """The word put_orders(q0, q1, place, group, n): the bytes of a group in a flat token of n columns."""
    columns, halves, evens, fours = (passes * ORDERS.index(name) for name in ("columns", "halves", "evens", "fours"))

    @inline
    def put_pass(first: Any, second: Any, place: int, group: int, n: int) -> None:
        store(place + columns * n + 32 * group, join(first, second))
        half = place + halves * n + 128 * (group // 4) + 16 * (group & 3)
        store(half, first)
        store(half + 64, second)
        even = place + evens * n + 256 * (group // 8) + 128 * (group & 1) + 16 * (group >> 1 & 3)
        store(even, first)
        store(even + 64, second)
        store(place + fours * n + 32 * (group // 8 * 8 + group % 4 * 2 + group // 4 % 2), join(first, second))

    @inline
    def one(q0: Any, q1: Any, place: int, group: int, n: int) -> None:
        put_pass(convert(i8x16, q0), convert(i8x16, q1), place, group, n)

    @inline
    def two(q0: Any, q1: Any, place: int, group: int, n: int) -> None:
        put_pass(convert(i8x16, high_part(q0)), convert(i8x16, high_part(q1)), place, group, n)
        put_pass(convert(i8x16, low_part(q0)), convert(i8x16, low_part(q1)), place + n, group, n)

    return {1: one, 2: two}[passes]


@inline
def put_numbers(
    numbers: int, group: int, n: int, scale: float, sum0: float, sum1: float, total0: int, total1: int
) -> None:
    """The numbers of a group of a flat token of n columns; they lie behind its bytes."""
    store(numbers + 4 * group, scale)
    store(numbers + n // 8 + 4 * group, sum0 + sum1)
    store(numbers + n // 4 + 8 * group, sum0)
    store(numbers + n // 4 + 8 * group + 4, sum1)
    store(numbers + n // 2 + 4 * group, int32(total0 + total1))
    store(numbers + 5 * (n // 8) + 8 * group, total0)
    store(numbers + 5 * (n // 8) + 8 * group + 4, total1)


def flat_words(passes: int) -> tuple[Any, Any]:
    """The word that writes a group of a flat token (see `groups_word`), and the word repeat(out, token, first, end, n),
    which writes the numbers of groups that the last superblock does not own, if its own begin in first .. end."""
    put_orders, size, bytes_ = orders_word(passes), flat_bytes(256, passes) // 256, len(ORDERS) * passes

    @inline
    def flat(
        q0: Any, q1: Any, scale: float, sum0: float, sum1: float, total0: int, total1: int, out: int, token: int,
        group: int, n: int,
    ) -> None:  # fmt: skip
        columns, place = 256 * superblocks_of(n), slot(group, n // 32)
        put_orders(q0, q1, out + token * size * columns, place, columns)
        numbers = out + token * size * columns + bytes_ * columns
        put_numbers(numbers, place, columns, scale, sum0, sum1, total0, total1)

    @inline
    def repeat(out: int, token: int, first: int, end: int, n: int) -> None:
        whole, columns = n // 256 * PLACES, 256 * superblocks_of(n)
        if first <= whole < end:
            numbers, none = out + token * size * columns + bytes_ * columns, float32(0.0)
            for place in range(whole, slot(whole, n // 32)):
                put_numbers(numbers, place, columns, none, none, none, int32(0), int32(0))

    return flat, repeat


def start_word(passes: int) -> Any:
    """The word start(total): see `quant.products.layout`."""
    origin = MAGIC_BITS if starts_with_magic(passes) else 0

    @inline
    def start(total: int) -> Any:
        return int32(origin - ZERO * total)

    @inline
    def total_itself(total: int) -> Any:
        return int32(total)

    return start if target().takes_any_byte else total_itself


def tiled_word(tile: int, passes: int) -> Any:
    """The word that writes a group of a token in its tile: see `groups_word`."""
    put_bytes, size, row = bytes_word(tile, passes), record_bytes(tile, passes), 4 * tile
    start = start_word(passes)

    @inline
    def tiled(
        q0: Any, q1: Any, scale: float, sum0: float, sum1: float, total0: int, total1: int, out: int, token: int,
        group: int, n: int,
    ) -> None:  # fmt: skip
        room, within = superblocks_of(n), token % tile
        record = out + (token // tile * PLACES * room + number_of(slot(group, n // 32), room)) * size
        put_bytes(q0, q1, record + DEPTH * within)
        numbers = record + passes * 32 * tile + 4 * within
        store(numbers + row * SCALE, scale)
        store(numbers + row * SHIFT, scale * float32(-MAGIC))
        store(numbers + row * SUMS32, sum0 + sum1)
        store(numbers + row * SUMS16, sum0)
        store(numbers + row * (SUMS16 + 1), sum1)
        store(numbers + row * STARTS32, start(total0 + total1))
        store(numbers + row * STARTS16, start(total0))
        store(numbers + row * (STARTS16 + 1), start(total1))

    return tiled


@inline
def peak(x: int) -> Any:
    """The absolute values of the group at x, the larger of every two."""
    return maximum(absolute(load(f32x16, x)), absolute(load(f32x16, x + 64)))


@inline
def near(x: int, inverse: Any) -> Any:
    """How well whole numbers q stand for the group u at x, times the inverse of a scale: sums of q * u and of q * q."""
    u0, u1 = load(f32x16, x) * inverse, load(f32x16, x + 64) * inverse
    q0, q1 = rint(u0), rint(u1)
    return fma(q0, u0, q1 * u1), fma(q0, q0, q1 * q1)


@inline
def fit(a: int, b: int, c: int, d: int, inverse: Any) -> Any:
    """Of four groups, the factor f for which f * q is nearest to u in the sum of squares, and how much smaller that
    becomes by f * q. The factor is NaN where a value of the group is."""
    a_along, a_squares = near(a, first_of_four(inverse))
    b_along, b_squares = near(b, second_of_four(inverse))
    c_along, c_squares = near(c, third_of_four(inverse))
    d_along, d_squares = near(d, fourth_of_four(inverse))
    along = sums_of_four(a_along, b_along, c_along, d_along)
    squares = sums_of_four(a_squares, b_squares, c_squares, d_squares)
    factor = select(squares > splat(f32x16, float32(0.0)), along / squares, splat(f32x16, float32(1.0)) + along)
    return factor, along * factor


@inline
def try_also(a: int, b: int, c: int, d: int, inverse: Any, ratio: float, factor: Any, gain: Any, chosen: Any) -> Any:
    """The factors, gains and inverses that are best so far, or those of a smaller inverse where they are better."""
    smaller = inverse * splat(f32x16, float32(ratio))
    other_factor, other_gain = fit(a, b, c, d, smaller)
    other_gain = other_gain * splat(f32x16, float32(1 / ratio**2))
    better = other_gain > gain
    return select(better, other_factor, factor), select(better, other_gain, gain), select(better, smaller, chosen)


def scales_word(passes: int) -> Any:
    """The word scales(a, b, c, d): the scales of the groups at these addresses, and the inverses to round them with.

    8 bits are tried with three scales, and the best one is kept: that takes a tenth and more off the squared errors.
    """
    top = float32(LARGEST[passes])

    @inline
    def inverses(a: int, b: int, c: int, d: int) -> Any:
        peaks = largest_of_four(peak(a), peak(b), peak(c), peak(d))
        return splat(f32x16, top) / maximum(peaks, splat(f32x16, float32(top * SMALLEST)))

    @inline
    def best_of_three(a: int, b: int, c: int, d: int) -> Any:
        inverse = inverses(a, b, c, d)
        factor, gain = fit(a, b, c, d, inverse)
        factor, gain, chosen = try_also(a, b, c, d, inverse, SECOND, factor, gain, inverse)
        factor, gain, chosen = try_also(a, b, c, d, inverse, THIRD, factor, gain, chosen)
        return coarse(factor / chosen), chosen

    @inline
    def only_one(a: int, b: int, c: int, d: int) -> Any:
        inverse = inverses(a, b, c, d)
        factor, _ = fit(a, b, c, d, inverse)
        return coarse(factor / inverse), inverse

    return {1: best_of_three, 2: only_one}[passes]


@inline
def whole(x: int, inverse: Any) -> Any:
    """The whole numbers of the group at x."""
    return convert(i32x16, load(f32x16, x) * inverse), convert(i32x16, load(f32x16, x + 64) * inverse)


@cache
def groups_word(tile: int, passes: int) -> Any:
    """The word quantize_groups(x, out, token, first, end, n): some groups of 32 columns of the n floats at x, a token,
    into the batch at `out`.

    A value that is not finite makes the scale NaN, and so everything that is computed from it.
    """
    flat, repeat = flat_words(passes)
    write, scales = tiled_word(tile, passes) if tile else flat, scales_word(passes)

    @inline
    def put(
        lane: int, q0: Any, q1: Any, scale: Any, s0: Any, s1: Any, t0: Any, t1: Any, out: int, token: int, group: int,
        n: int,
    ) -> None:  # fmt: skip
        write(
            q0, q1, extract(scale, lane), extract(s0, lane), extract(s1, lane), extract(t0, lane), extract(t1, lane),
            out, token, group, n,
        )  # fmt: skip

    @inline
    def quantize_four(x: int, out: int, token: int, i: int, j: int, k: int, m: int, n: int) -> None:
        a, b, c, d = x + 128 * i, x + 128 * j, x + 128 * k, x + 128 * m
        scale, inverse = scales(a, b, c, d)
        a0, a1 = whole(a, first_of_four(inverse))
        b0, b1 = whole(b, second_of_four(inverse))
        c0, c1 = whole(c, third_of_four(inverse))
        d0, d1 = whole(d, fourth_of_four(inverse))
        t0, t1 = sums_of_four(a0, b0, c0, d0), sums_of_four(a1, b1, c1, d1)
        s0, s1 = scale * convert(f32x16, t0), scale * convert(f32x16, t1)
        put(0, a0, a1, scale, s0, s1, t0, t1, out, token, i, n)
        put(4, b0, b1, scale, s0, s1, t0, t1, out, token, j, n)
        put(8, c0, c1, scale, s0, s1, t0, t1, out, token, k, n)
        put(12, d0, d1, scale, s0, s1, t0, t1, out, token, m, n)

    @inline
    def quantize_groups(x: int, out: int, token: int, first: int, end: int, n: int) -> None:
        last = end - 1
        for group in range(first, end, 4):
            quantize_four(x, out, token, group, min(group + 1, last), min(group + 2, last), min(group + 3, last), n)
        if not tile:
            repeat(out, token, first, end, n)

    return quantize_groups


def quantize(tile: int, passes: int) -> Any:
    """The kernel that quantizes the rows of x, laid out for tiles of that many tokens, or flat for 0."""
    quantize_groups = groups_word(tile, passes)

    def body(tokens, x, n, out, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            quantize_groups(x + 4 * n * token, out, token, 0, n // 32, n)

    return body
