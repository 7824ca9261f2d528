"""RMSNorm (Zhang and Sennrich, 2019), y = x / sqrt(mean(x^2) + eps) * weight, and LayerNorm (Ba et al., 2016), y = (x -
mean(x)) / sqrt(variance(x) + eps) * weight + bias."""

from collections.abc import Callable
from typing import Any

from numba import float32, float64, int64

from quant.jit.threads import chunk_range
from quant.jit.vectors import f32x16, fma, inline, load, reduce_sum, splat, sqrt, store
from quant.matmul.activations import make_quantize_groups

Body = Callable[..., None]


@inline
def mean_square(x: int, n: int) -> Any:
    """Return mean(x^2) of n floats."""
    squares, whole, rest = splat(f32x16, float32(0.0)), n // 16 * 16, float32(0.0)
    for i in range(0, whole, 16):
        v = load(f32x16, x + 4 * i)
        squares = fma(v, v, squares)
    for i in range(whole, n):
        rest += load(float32, x + 4 * i) * load(float32, x + 4 * i)
    return (reduce_sum(squares) + rest) / float32(n)


@inline
def inverse_rms(x: int, n: int, eps: float) -> Any:
    """Return 1 / sqrt(mean(x^2) + eps) of n floats."""
    return float32(1.0) / sqrt(mean_square(x, n) + float32(eps))


@inline
def normalize(x: int, weight: int, n: int, eps: float, y: int) -> None:
    """Store y = RMSNorm of x; x and y may be the same."""
    inverse, whole = inverse_rms(x, n, eps), n // 16 * 16
    factor = splat(f32x16, inverse)
    for i in range(0, whole, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) * factor * load(f32x16, weight + 4 * i))
    for i in range(whole, n):
        store(y + 4 * i, load(float32, x + 4 * i) * inverse * load(float32, weight + 4 * i))


@inline
def normalize_unweighted(x: int, n: int, eps: float, y: int) -> None:
    """Store y = RMSNorm of x without weights; x and y may be the same."""
    inverse, whole = inverse_rms(x, n, eps), n // 16 * 16
    factor = splat(f32x16, inverse)
    for i in range(0, whole, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) * factor)
    for i in range(whole, n):
        store(y + 4 * i, load(float32, x + 4 * i) * inverse)


@inline
def subtract_mean(x: int, n: int, y: int) -> None:
    """Store y = x - mean(x); x and y may be the same."""
    sums, whole, rest = splat(f32x16, float32(0.0)), n // 16 * 16, float32(0.0)
    for i in range(0, whole, 16):
        sums = sums + load(f32x16, x + 4 * i)
    for i in range(whole, n):
        rest += load(float32, x + 4 * i)
    middle = (reduce_sum(sums) + rest) / float32(n)
    for i in range(0, whole, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) - splat(f32x16, middle))
    for i in range(whole, n):
        store(y + 4 * i, load(float32, x + 4 * i) - middle)


@inline
def normalize_layer(x: int, weight: int, bias: int, n: int, eps: float, y: int) -> None:
    """Store y = LayerNorm of x, without bias if that is 0; n is a multiple of 16."""
    subtract_mean(x, n, y)
    normalize(y, weight, n, eps, y)
    if bias:
        for i in range(0, n, 16):
            store(y + 4 * i, load(f32x16, y + 4 * i) + load(f32x16, bias + 4 * i))


def rms_norm(tile: int, passes: int) -> Body:
    """Make the kernel y = RMSNorm(x), and q = y quantized unless q is 0. A thread processes whole tiles."""
    quantize_groups, together = make_quantize_groups(tile, passes), max(tile, 1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(load(int64, args.tokens), together, chunk_index, n_chunks)
        for token in range(first, end):
            normalize(args.x + 4 * n * token, args.weight, n, args.eps, args.y + 4 * n * token)
            if args.q:
                quantize_groups(args.y + 4 * n * token, args.q, token, 0, n // 32, n)

    return body


def layer_norm(tile: int, passes: int) -> Body:
    """Make the kernel y = LayerNorm(x), and q = y quantized unless q is 0. A thread processes whole tiles."""
    quantize_groups, together = make_quantize_groups(tile, passes), max(tile, 1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(load(int64, args.tokens), together, chunk_index, n_chunks)
        for token in range(first, end):
            normalize_layer(args.x + 4 * n * token, args.weight, args.bias, n, args.eps, args.y + 4 * n * token)
            if args.q:
                quantize_groups(args.y + 4 * n * token, args.q, token, 0, n // 32, n)

    return body


def norm_groups() -> Body:
    """Make the kernel that applies RMSNorm to each of `count` groups of `size` values per row. The weights of adjacent
    groups are `step` floats apart; `weight` 0 means none. x and y may be the same."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        size = args.size
        items = load(int64, args.tokens) * args.count
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            source, out = args.x + 4 * size * item, args.y + 4 * size * item
            if args.weight:
                normalize(source, args.weight + 4 * args.step * (item % args.count), size, args.eps, out)
            else:
                normalize_unweighted(source, size, args.eps, out)

    return body


def norm_heads() -> Body:
    """Make the kernel that applies LayerNorm to every head in place, with weights per head."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        size = args.size
        items = load(int64, args.tokens) * args.heads
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            head = args.x + 4 * size * item
            subtract_mean(head, size, head)
            normalize(head, args.weight + 4 * size * (item % args.heads), size, args.eps, head)

    return body


@inline
def block_sum(x: int, n: int) -> Any:
    """Return the sum of n floats, n a multiple of 16, in double precision."""
    total = float64(0.0)
    for i in range(0, n, 16):
        total += float64(reduce_sum(load(f32x16, x + 4 * i)))
    return total


@inline
def squared_distance(x: int, n: int, center: float) -> Any:
    """Return the sum of (x - center)^2 of n floats, n a multiple of 16, in double precision."""
    total, middle = float64(0.0), splat(f32x16, float32(center))
    for i in range(0, n, 16):
        distance = load(f32x16, x + 4 * i) - middle
        total += float64(reduce_sum(distance * distance))
    return total


@inline
def scale_row(x: int, weight: int, n: int, center: float, factor: float) -> None:
    """Store x = (x - center) * factor * weight, n floats, n a multiple of 16."""
    middle, scale = splat(f32x16, float32(center)), splat(f32x16, float32(factor))
    for i in range(0, n, 16):
        store(x + 4 * i, (load(f32x16, x + 4 * i) - middle) * scale * load(f32x16, weight + 4 * i))


def cumulative_norm() -> Body:
    """Make the kernel that normalizes groups of `size` consecutive rows of n values, n a multiple of 16: with the mean
    of all values up to the end of the group, and the mean squared distance of each value from such a mean of its own
    group. One thread runs it: sums go on from group to group."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        length, total, distances = args.size * args.n, float64(0.0), float64(0.0)
        for group in range(load(int64, args.tokens) // args.size):
            x, count = args.x + 4 * length * group, float64(length * (group + 1))
            total += block_sum(x, length)
            center = total / count
            distances += squared_distance(x, length, center)
            factor = float64(1.0) / sqrt(distances / count + float64(args.eps))
            for row in range(args.size):
                scale_row(x + 4 * args.n * row, args.weight, args.n, center, factor)

    return body
