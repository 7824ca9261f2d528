"""Attention whose scores depend on the distance of two rows, also by learned vectors (Shaw et al., 2018; Dai et al.,
2019), for encoders of sounds. Row i attends to the rows j from its `oldest` to its `newest`:

    score(i, j) = scale * ((q[i] + bias_u) . k[j] + (q[i] + bias_v) . p[first + j - i]), soft-capped at `cap` unless 0

Queries and values are [row][head][size]. Keys and position vectors p are transposed, [head][size][row] and rows of
`k_stride` and `p_stride` values, so that 16 neighbouring rows are scored at once: what is read beyond the rows of a
span is ignored, but must be memory of the matrices. Heads have own position vectors, `p_step` rows apart, or share them
if `p_step` is 0. Without them, p is 0. Biases are [head][size], or 0. There may be more or fewer queries than keys.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.kernels.exponentials import exp
from localinfer.kernels.residual import soft_capped
from quant.jit.vectors import (
    f32x16,
    fma,
    gather,
    i32x16,
    inline,
    load,
    make_constant,
    maximum,
    reduce_max,
    reduce_sum,
    select,
    splat,
    store,
)

Body = Callable[..., None]
LOWEST = -1e30
LANES = 16
lane_numbers = make_constant(i32x16, range(LANES))


def transpose() -> Body:
    """Make the kernel y[column][first + row] = x[row][column], where rows of y have y_n values."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n, count = args.n, load(int64, args.tokens)
        whole = count // LANES * LANES
        for column in range(n * chunk_index // n_chunks, n * (chunk_index + 1) // n_chunks):
            source, out = args.x + 4 * column, args.y + 4 * (args.y_n * column + args.first)
            for row in range(0, whole, LANES):
                store(out + 4 * row, gather(f32x16, source + 4 * n * row, 4 * n))
            for row in range(whole, count):
                store(out + 4 * row, load(float32, source + 4 * n * row))

    return body


@inline
def add_bias(x: int, bias: int, scale: float, n: int, out: int) -> None:
    """Store scale * (x + bias), where bias may be 0."""
    factor = splat(f32x16, float32(scale))
    for i in range(0, 4 * n, 64):
        value = load(f32x16, x + i)
        store(out + i, (value + load(f32x16, bias + i) if bias else value) * factor)


@inline
def score_16(q: int, u: int, k: int, p: int, strides: tuple[int, int], size: int) -> Any:
    """Return the scores of 16 neighbouring rows: q . k + u . p, or q . k if p is 0."""
    s, t = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    if p == 0:
        for i in range(size):
            s = fma(splat(f32x16, load(float32, q + 4 * i)), load(f32x16, k + strides[0] * i), s)
        return s
    for i in range(size):
        s = fma(splat(f32x16, load(float32, q + 4 * i)), load(f32x16, k + strides[0] * i), s)
        t = fma(splat(f32x16, load(float32, u + 4 * i)), load(f32x16, p + strides[1] * i), t)
    return s + t


@inline
def weigh(values: int, stride: int, weights: int, count: int, factor: float, out: int) -> None:
    """Store factor * sum of weights[j] * values[j], 16 columns of rows that are `stride` bytes apart."""
    s, t = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    for j in range(0, count // 2 * 2, 2):
        s = fma(splat(f32x16, load(float32, weights + 4 * j)), load(f32x16, values + stride * j), s)
        t = fma(splat(f32x16, load(float32, weights + 4 * j + 4)), load(f32x16, values + stride * (j + 1)), t)
    if count % 2:
        last = count - 1
        s = fma(splat(f32x16, load(float32, weights + 4 * last)), load(f32x16, values + stride * last), s)
    store(out, (s + t) * splat(f32x16, float32(factor)))


def relative_attention() -> Body:
    """Make the attention kernel of this module. Threads divide the pairs of heads and rows."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        size, count, row_bytes = args.size, load(int64, args.tokens), 4 * args.heads * args.size
        q, u, scores = scratch, scratch + 4 * size, scratch + 8 * size
        strides = (4 * args.k_stride, 4 * args.p_stride)
        items = args.heads * count
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            head, row = item // count, item % count
            at = row_bytes * row + 4 * size * head
            add_bias(args.q + at, args.bias_u + 4 * size * head if args.bias_u else 0, args.scale, size, q)
            add_bias(args.q + at, args.bias_v + 4 * size * head if args.bias_v else 0, args.scale, size, u)
            oldest, newest = int64(load(int32, args.oldest + 4 * row)), int64(load(int32, args.newest + 4 * row))
            begin, highest = oldest // LANES * LANES, splat(f32x16, float32(LOWEST))
            keys = args.k + strides[0] * size * head
            vectors = args.p + strides[1] * args.p_step * head + 4 * (args.first - row)
            for j in range(begin, newest + 1, LANES):
                s = score_16(q, u, keys + 4 * j, vectors + 4 * j if args.p else 0, strides, size)
                numbers, lowest = lane_numbers() + splat(i32x16, int32(j)), splat(f32x16, float32(LOWEST))
                s = select(numbers > splat(i32x16, int32(newest)), lowest, soft_capped(s, 1.0, args.cap))
                s = select(numbers < splat(i32x16, int32(oldest)), lowest, s)
                store(scores + 4 * (j - begin), s)
                highest = maximum(highest, s)
            top, total = splat(f32x16, reduce_max(highest)), splat(f32x16, float32(0.0))
            for j in range(0, 4 * (newest + 1 - begin), 64):
                weights = exp(load(f32x16, scores + j) - top)
                store(scores + j, weights)
                total = total + weights
            factor = float32(1.0) / reduce_sum(total)
            first = scores + 4 * (oldest - begin)
            for i in range(0, 4 * size, 64):
                values = args.v + row_bytes * oldest + 4 * size * head + i
                weigh(values, row_bytes, first, newest + 1 - oldest, factor, args.y + at + i)

    return body
