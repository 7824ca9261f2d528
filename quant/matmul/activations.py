"""Quantization of activations to integers for the dot product instructions. `quant.matmul.layout` defines the layouts.

Four groups are quantized side by side: a number per group fills four lanes of a vector.
"""

from functools import cache
from typing import Any, NamedTuple

from numba import float32, int32, int64

from quant.jit.cpu import target
from quant.jit.vectors import (
    Vector,
    absolute,
    bitcast,
    concat,
    convert,
    extract,
    f32x16,
    fma,
    i8x16,
    i32x8,
    i32x16,
    inline,
    load,
    make_shuffle,
    maximum,
    rint,
    select,
    splat,
    store,
)
from quant.matmul.layout import (
    GROUPS_PER_SUPERBLOCK,
    MAGIC,
    MAGIC_BITS,
    MAX_QUANT,
    ORDERS,
    PANEL_ZERO_POINT,
    SCALE,
    SHIFT,
    STARTS16,
    STARTS32,
    SUMS16,
    SUMS32,
    flat_bytes,
    n_superblocks,
    padded_group,
    record_bytes,
    record_index,
    starts_with_magic,
)
from quant.matmul.reductions import max_four_vectors, sum_four_vectors

DEPTH = target().depth
count_superblocks, padded_index, index_of_record = inline(n_superblocks), inline(padded_group), inline(record_index)
STEP_VECTOR = {4: i32x8, 8: Vector(int64, 4)}[DEPTH]  # 32 bytes
MIN_SCALE = 2.0**-126  # the smallest normal scale whose inverse is finite
SECOND_PEAK, THIRD_PEAK = 126 / 127, 125 / 127  # 8-bit groups are also tried with the peak at 126 and 125

first_of_four, second_of_four, third_of_four, fourth_of_four = (make_shuffle([lane] * 16) for lane in (0, 4, 8, 12))


@inline
def high_part(q: Any) -> Any:
    """Return the high part of 15-bit integers: the multiple of 128 nearest to q, divided by 128."""
    return (q + splat(i32x16, int32(64))) >> splat(i32x16, int32(7))


@inline
def low_part(q: Any) -> Any:
    """Return the low part of 15-bit integers: q - 128 * high_part(q)."""
    return q - (high_part(q) << splat(i32x16, int32(7)))


@inline
def truncate_scale(scale: Any) -> Any:
    """Clear the last two bits of scales, so that MAGIC (3 * 2^22) times the scale is exact."""
    return bitcast(f32x16, bitcast(i32x16, scale) & splat(i32x16, int32(-4)))


def make_store_tiled_bytes(tile: int, passes: int) -> Any:
    """Return the inlined function store_bytes(q0, q1, out), which stores the bytes of a group in a tile of tokens.

    `q0` and `q1` are the integers of 16 columns each, i32x16. Each store writes `depth` columns.
    """

    @inline
    def store_pass(q0: Any, q1: Any, out: int) -> None:
        neighbours = bitcast(STEP_VECTOR, concat(convert(i8x16, q0), convert(i8x16, q1)))
        for step in range(32 // DEPTH):
            store(out + DEPTH * tile * step, extract(neighbours, int64(step)))

    @inline
    def store_two_passes(q0: Any, q1: Any, out: int) -> None:
        store_pass(high_part(q0), high_part(q1), out)
        store_pass(low_part(q0), low_part(q1), out + 32 * tile)

    return {1: store_pass, 2: store_two_passes}[passes]


def make_store_ordered_bytes(passes: int) -> Any:
    """Return the inlined function store_ordered(q0, q1, out, group, n): store a group's bytes in all orders of a flat
    token with n columns.
    """
    columns, halves, evens, pairs = (passes * ORDERS.index(name) for name in ("columns", "halves", "evens", "pairs"))

    @inline
    def store_pass(first: Any, second: Any, out: int, group: int, n: int) -> None:
        store(out + columns * n + 32 * group, concat(first, second))
        half = out + halves * n + 128 * (group // 4) + 16 * (group & 3)
        store(half, first)
        store(half + 64, second)
        even = out + evens * n + 256 * (group // 8) + 128 * (group & 1) + 16 * (group >> 1 & 3)
        store(even, first)
        store(even + 64, second)
        store(out + pairs * n + 32 * (group // 8 * 8 + group % 4 * 2 + group // 4 % 2), concat(first, second))

    @inline
    def store_one_pass(q0: Any, q1: Any, out: int, group: int, n: int) -> None:
        store_pass(convert(i8x16, q0), convert(i8x16, q1), out, group, n)

    @inline
    def store_two_passes(q0: Any, q1: Any, out: int, group: int, n: int) -> None:
        store_pass(convert(i8x16, high_part(q0)), convert(i8x16, high_part(q1)), out, group, n)
        store_pass(convert(i8x16, low_part(q0)), convert(i8x16, low_part(q1)), out + n, group, n)

    return {1: store_one_pass, 2: store_two_passes}[passes]


class Group(NamedTuple):
    """A quantized group of 32 columns: the integers of each half, i32x16; the scale; and for each half the sum of the
    values and the total of the integers."""

    q0: Any
    q1: Any
    scale: Any
    sum0: Any
    sum1: Any
    total0: Any
    total1: Any


class GroupPosition(NamedTuple):
    """Where a group belongs: the address of the batch, and the numbers of the token and of its group of n columns."""

    out: int
    token: int
    group: int
    n: int


@inline
def store_flat_numbers(numbers: int, index: int, n: int, group: Group) -> None:
    """Store the scale, sums and totals of group `index` of a flat token with n columns. They lie after its bytes."""
    store(numbers + 4 * index, group.scale)
    store(numbers + n // 8 + 4 * index, group.sum0 + group.sum1)
    store(numbers + n // 4 + 8 * index, group.sum0)
    store(numbers + n // 4 + 8 * index + 4, group.sum1)
    store(numbers + n // 2 + 4 * index, int32(group.total0 + group.total1))
    store(numbers + 5 * (n // 8) + 8 * index, group.total0)
    store(numbers + 5 * (n // 8) + 8 * index + 4, group.total1)


def make_flat_writer(passes: int) -> tuple[Any, Any]:
    """Return two inlined functions: the writer of a group of a flat token, and zero_repeated_groups.

    zero_repeated_groups(out, token, first, end, n) zeroes the scales and sums of the groups that the last superblock
    repeats. It acts only if the range first .. end contains the first of this superblock's own groups.
    See `make_quantize_groups`.
    """
    store_ordered, size, bytes_ = make_store_ordered_bytes(passes), flat_bytes(256, passes) // 256, len(ORDERS) * passes

    @inline
    def flat(group: Group, position: GroupPosition) -> None:
        columns, index = 256 * count_superblocks(position.n), padded_index(position.group, position.n // 32)
        address = position.out + position.token * size * columns
        store_ordered(group.q0, group.q1, address, index, columns)
        store_flat_numbers(address + bytes_ * columns, index, columns, group)

    @inline
    def zero_repeated_groups(out: int, token: int, first: int, end: int, n: int) -> None:
        whole, columns = n // 256 * GROUPS_PER_SUPERBLOCK, 256 * count_superblocks(n)
        if first <= whole < end:
            numbers, none, zero = out + token * size * columns + bytes_ * columns, float32(0.0), int32(0)
            for index in range(whole, padded_index(whole, n // 32)):
                store_flat_numbers(numbers, index, columns, Group(zero, zero, none, none, none, zero, zero))

    return flat, zero_repeated_groups


def make_start(passes: int) -> Any:
    """Return the inlined function start(total), the start value of integer sums: see `quant.matmul.layout`."""
    origin = MAGIC_BITS if starts_with_magic(passes) else 0

    @inline
    def start(total: int) -> Any:
        return int32(origin - PANEL_ZERO_POINT * total)

    @inline
    def start_total(total: int) -> Any:
        return int32(total)

    return start if target().has_exact_u8_dot else start_total


def make_tiled_writer(tile: int, passes: int) -> Any:
    """Return the inlined function that stores a group of a token in its tile: see `make_quantize_groups`."""
    store_bytes, size, row = make_store_tiled_bytes(tile, passes), record_bytes(tile, passes), 4 * tile
    start = make_start(passes)

    @inline
    def tiled(group: Group, position: GroupPosition) -> None:
        superblocks, within = count_superblocks(position.n), position.token % tile
        group_record = index_of_record(padded_index(position.group, position.n // 32), superblocks)
        record = position.out + (position.token // tile * GROUPS_PER_SUPERBLOCK * superblocks + group_record) * size
        store_bytes(group.q0, group.q1, record + DEPTH * within)
        numbers = record + passes * 32 * tile + 4 * within
        store(numbers + row * SCALE, group.scale)
        store(numbers + row * SHIFT, group.scale * float32(-MAGIC))
        store(numbers + row * SUMS32, group.sum0 + group.sum1)
        store(numbers + row * SUMS16, group.sum0)
        store(numbers + row * (SUMS16 + 1), group.sum1)
        store(numbers + row * STARTS32, start(group.total0 + group.total1))
        store(numbers + row * STARTS16, start(group.total0))
        store(numbers + row * (STARTS16 + 1), start(group.total1))

    return tiled


@inline
def pairwise_peak(x: int) -> Any:
    """Return the absolute values of the group at x, reduced to sixteen by the maximum of pairs."""
    return maximum(absolute(load(f32x16, x)), absolute(load(f32x16, x + 64)))


@inline
def rounding_products(x: int, inverse: Any) -> Any:
    """Return the sums of q * u and of q * q, where u is the group at x times `inverse`, and q is u rounded."""
    u0, u1 = load(f32x16, x) * inverse, load(f32x16, x + 64) * inverse
    q0, q1 = rint(u0), rint(u1)
    return fma(q0, u0, q1 * u1), fma(q0, q0, q1 * q1)


@inline
def fit_scale(a: int, b: int, c: int, d: int, inverse: Any) -> Any:
    """Return, for four groups, the factor f that minimizes the squared error of f * q against u, and the reduction of
    the error.

    The factor is NaN if a value of the group is.
    """
    a_along, a_squares = rounding_products(a, first_of_four(inverse))
    b_along, b_squares = rounding_products(b, second_of_four(inverse))
    c_along, c_squares = rounding_products(c, third_of_four(inverse))
    d_along, d_squares = rounding_products(d, fourth_of_four(inverse))
    along = sum_four_vectors(a_along, b_along, c_along, d_along)
    squares = sum_four_vectors(a_squares, b_squares, c_squares, d_squares)
    factor = select(squares > splat(f32x16, float32(0.0)), along / squares, splat(f32x16, float32(1.0)) + along)
    return factor, along * factor


class ScaleFit(NamedTuple):
    """The scales of four groups: the inverses that round the groups, and the factors and gains of `fit_scale`."""

    inverse: Any
    factor: Any
    gain: Any


@inline
def try_smaller_inverse(a: int, b: int, c: int, d: int, inverse: Any, ratio: float, best: ScaleFit) -> ScaleFit:
    """Return the best fit so far, replaced by that of `ratio` times the inverse where it is better."""
    smaller = inverse * splat(f32x16, float32(ratio))
    factor, gain = fit_scale(a, b, c, d, smaller)
    gain = gain * splat(f32x16, float32(1 / ratio**2))
    better = gain > best.gain
    return ScaleFit(
        select(better, smaller, best.inverse), select(better, factor, best.factor), select(better, gain, best.gain)
    )


def make_group_scales(passes: int) -> Any:
    """Return the inlined function scales(a, b, c, d): the scales of four groups, and the inverses to round them with.

    The arguments are the groups' addresses. For 8 bits, the best of three scales is used, which reduces the
    squared error by a tenth or more.
    """
    top = float32(MAX_QUANT[passes])

    @inline
    def inverses(a: int, b: int, c: int, d: int) -> Any:
        peaks = max_four_vectors(pairwise_peak(a), pairwise_peak(b), pairwise_peak(c), pairwise_peak(d))
        return splat(f32x16, top) / maximum(peaks, splat(f32x16, float32(top * MIN_SCALE)))

    @inline
    def best_of_three(a: int, b: int, c: int, d: int) -> Any:
        inverse = inverses(a, b, c, d)
        factor, gain = fit_scale(a, b, c, d, inverse)
        second = try_smaller_inverse(a, b, c, d, inverse, SECOND_PEAK, ScaleFit(inverse, factor, gain))
        best = try_smaller_inverse(a, b, c, d, inverse, THIRD_PEAK, second)
        return truncate_scale(best.factor / best.inverse), best.inverse

    @inline
    def single_scale(a: int, b: int, c: int, d: int) -> Any:
        inverse = inverses(a, b, c, d)
        factor, _ = fit_scale(a, b, c, d, inverse)
        return truncate_scale(factor / inverse), inverse

    return {1: best_of_three, 2: single_scale}[passes]


@inline
def round_group(x: int, inverse: Any) -> Any:
    """Return the integers of the group at x."""
    return convert(i32x16, load(f32x16, x) * inverse), convert(i32x16, load(f32x16, x + 64) * inverse)


@cache
def make_quantize_groups(tile: int, passes: int) -> Any:
    """Return the inlined function quantize_groups(x, out, token, first, end, n), which quantizes groups first .. end of
    a token.

    A group has 32 columns. `x` is the address of the token's n float32, `out` that of the batch. With `tile` = 0 the
    layout is flat. A value that is not finite makes the group's scale NaN, and so every result computed from it.
    """
    flat, zero_repeated_groups = make_flat_writer(passes)
    write, scales = make_tiled_writer(tile, passes) if tile else flat, make_group_scales(passes)

    @inline
    def write_lane(lane: int, groups: Group, position: GroupPosition) -> None:
        """Store one of four groups, whose numbers are in a lane of each vector."""
        group = Group(
            groups.q0,
            groups.q1,
            extract(groups.scale, lane),
            extract(groups.sum0, lane),
            extract(groups.sum1, lane),
            extract(groups.total0, lane),
            extract(groups.total1, lane),
        )
        write(group, position)

    @inline
    def quantize_four(x: int, out: int, token: int, i: int, j: int, k: int, m: int, n: int) -> None:
        a, b, c, d = x + 128 * i, x + 128 * j, x + 128 * k, x + 128 * m
        scale, inverse = scales(a, b, c, d)
        a0, a1 = round_group(a, first_of_four(inverse))
        b0, b1 = round_group(b, second_of_four(inverse))
        c0, c1 = round_group(c, third_of_four(inverse))
        d0, d1 = round_group(d, fourth_of_four(inverse))
        t0, t1 = sum_four_vectors(a0, b0, c0, d0), sum_four_vectors(a1, b1, c1, d1)
        s0, s1 = scale * convert(f32x16, t0), scale * convert(f32x16, t1)
        write_lane(0, Group(a0, a1, scale, s0, s1, t0, t1), GroupPosition(out, token, i, n))
        write_lane(4, Group(b0, b1, scale, s0, s1, t0, t1), GroupPosition(out, token, j, n))
        write_lane(8, Group(c0, c1, scale, s0, s1, t0, t1), GroupPosition(out, token, k, n))
        write_lane(12, Group(d0, d1, scale, s0, s1, t0, t1), GroupPosition(out, token, m, n))

    @inline
    def quantize_groups(x: int, out: int, token: int, first: int, end: int, n: int) -> None:
        last = end - 1
        for group in range(first, end, 4):
            quantize_four(x, out, token, group, min(group + 1, last), min(group + 2, last), min(group + 3, last), n)
        if not tile:
            zero_repeated_groups(out, token, first, end, n)

    return quantize_groups


def quantize(tile: int, passes: int) -> Any:
    """Return the kernel that quantizes the rows of x, float32 [token][n], to the layout for tiles of `tile` tokens, or
    flat for 0.
    """
    quantize_groups = make_quantize_groups(tile, passes)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            quantize_groups(args.x + 4 * args.n * token, args.out, token, 0, args.n // 32, args.n)

    return body
