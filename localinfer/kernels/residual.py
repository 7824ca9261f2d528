"""Operations on whole rows: adding biases and branches, gathering and weighing rows, softmax, soft-capping and
clipping."""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.kernels.exponentials import exp, tanh
from localinfer.kernels.norm import normalize
from quant.jit.vectors import (
    f32x16,
    fma,
    i32x16,
    inline,
    load,
    make_constant,
    maximum,
    minimum,
    reduce_max,
    reduce_sum,
    select,
    splat,
    store,
)

Body = Callable[..., None]
lane_numbers = make_constant(i32x16, range(16))


@inline
def add_row(x: int, y: int, factor: float, n: int) -> None:
    """Add factor * y to x, n floats, n a multiple of 16."""
    scale = splat(f32x16, float32(factor))
    for i in range(0, n, 16):
        store(x + 4 * i, load(f32x16, x + 4 * i) + scale * load(f32x16, y + 4 * i))


def add_bias() -> Body:
    """Make the kernel x[token] += bias."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            add_row(args.x + 4 * args.n * token, args.bias, 1.0, args.n)

    return body


def add() -> Body:
    """Make the kernel x += factor * branch."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            add_row(args.x + 4 * args.n * token, args.branch + 4 * args.n * token, args.factor, args.n)

    return body


def add_norm() -> Body:
    """Make the kernel x += norm(branch), which overwrites the branch."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            source = args.branch + 4 * n * token
            normalize(source, args.weight, n, args.eps, source)
            add_row(args.x + 4 * n * token, source, 1.0, n)

    return body


def gather_rows() -> Body:
    """Make the kernel y[i] = x[numbers[i]]."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            source = args.x + 4 * args.n * int64(load(int32, args.numbers + 4 * token))
            for i in range(0, args.n, 16):
                store(args.y + 4 * (args.n * token + i), load(f32x16, source + 4 * i))

    return body


def average_rows() -> Body:
    """Make the kernel y[i] = mean of x[numbers[i][j]] over `count` numbers."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n, width, total = args.n, args.count, load(int64, args.tokens)
        factor = splat(f32x16, float32(1.0) / float32(width))
        for token in range(total * chunk_index // n_chunks, total * (chunk_index + 1) // n_chunks):
            for i in range(0, n, 16):
                s = splat(f32x16, float32(0.0))
                for j in range(width):
                    row = int64(load(int32, args.numbers + 4 * (width * token + j)))
                    s = s + load(f32x16, args.x + 4 * (n * row + i))
                store(args.y + 4 * (n * token + i), s * factor)

    return body


def weigh_rows() -> Body:
    """Make the kernel y[i] = bias + sum of weight[j] * x[numbers[i][j]] over `count` numbers, column by column: a
    depthwise convolution, whose taps are rows. Row -1 is zeros. weight is [count][n]; bias may be 0."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n, width, total = args.n, args.count, load(int64, args.tokens)
        for token in range(total * chunk_index // n_chunks, total * (chunk_index + 1) // n_chunks):
            numbers, out = args.numbers + 4 * width * token, args.y + 4 * n * token
            for i in range(0, n, 16):
                s = load(f32x16, args.bias + 4 * i) if args.bias else splat(f32x16, float32(0.0))
                for j in range(width):
                    row = int64(load(int32, numbers + 4 * j))
                    if row >= 0:
                        value = load(f32x16, args.x + 4 * (n * row + i))
                        s = fma(load(f32x16, args.weight + 4 * (n * j + i)), value, s)
                store(out + 4 * i, s)

    return body


def softmax() -> Body:
    """Make the kernel that replaces the first n values of each row of x by their softmax, and those after them, up to
    the length of a row (`stride`, a multiple of 16), by 0."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n, last = load(int64, args.tokens), args.n, args.n // 16 * 16
        lowest, zero = splat(f32x16, float32(-1e30)), splat(f32x16, float32(0.0))
        is_valid = lane_numbers() < splat(i32x16, int32(n - last))  # of the lanes of the last vector
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            x, highest, total = args.x + 4 * args.stride * token, lowest, zero
            for i in range(0, n, 16):
                value = load(f32x16, x + 4 * i)
                highest = maximum(highest, value if i < last else select(is_valid, value, lowest))
            top = splat(f32x16, reduce_max(highest))
            for i in range(0, n, 16):
                power = exp(load(f32x16, x + 4 * i) - top)
                power = power if i < last else select(is_valid, power, zero)
                store(x + 4 * i, power)
                total = total + power
            factor = splat(f32x16, float32(1.0) / reduce_sum(total))
            for i in range(0, args.stride, 16):
                store(x + 4 * i, load(f32x16, x + 4 * i) * factor if i < n else zero)

    return body


def clip() -> Body:
    """Make the kernel y = min(max(x, low), high). x and y may be the same."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        low, high = splat(f32x16, float32(args.low)), splat(f32x16, float32(args.high))
        count = load(int64, args.tokens)
        first, end = count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks
        for i in range(4 * args.n * first, 4 * args.n * end, 64):
            store(args.y + i, minimum(maximum(load(f32x16, args.x + i), low), high))

    return body


@inline
def soft_capped(x: Any, factor: float, cap: float) -> Any:
    """Return factor * x, soft-capped at `cap` unless that is 0."""
    scaled = x * splat(f32x16, float32(factor))
    if cap == 0.0:
        return scaled
    return tanh(scaled * splat(f32x16, float32(1.0) / float32(cap))) * splat(f32x16, float32(cap))


def soft_cap() -> Body:
    """Make the kernel x = cap * tanh(factor * x / cap) (Bello et al., 2016), or factor * x if cap is 0; for any n."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        x = args.x
        end = load(int64, args.tokens) * args.n
        first, last = end * chunk_index // n_chunks // 16 * 16, end * (chunk_index + 1) // n_chunks // 16 * 16
        for i in range(first, last, 16):
            store(x + 4 * i, soft_capped(load(f32x16, x + 4 * i), args.factor, args.cap))
        if chunk_index == n_chunks - 1:
            for i in range(last, end):
                one = soft_capped(splat(f32x16, load(float32, x + 4 * i)), args.factor, args.cap)
                store(scratch, one)
                store(x + 4 * i, load(float32, scratch))

    return body
