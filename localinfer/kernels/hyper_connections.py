"""Hyper-connections (Zhu et al., 2024; Xie et al., 2025): several residual streams, [token][stream][value].

A branch reads a weighted sum of the `count` streams, and adds its output, times a weight, to each stream. For each
token there are `count` weights for the sum, `count` weights for the output, and possibly a matrix
[from stream][to stream] that mixes the streams.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.experts import sigmoid, softmax
from quant.jit.vectors import f32x16, fma, inline, load, splat, store

Body = Callable[..., None]


@inline
def add_to_all(x: int, n: int, value: float) -> None:
    """Add a number to n floats."""
    for i in range(n):
        store(x + 4 * i, load(float32, x + 4 * i) + float32(value))


@inline
def normalize_lines(x: int, count: int, line: int, step: int, eps: float) -> None:
    """Divide each line of a matrix (count, count) by its sum + eps. Lines are `line` values apart, and the values of a
    line `step`."""
    for number in range(count):
        at, total = x + 4 * line * number, float32(eps)
        for i in range(count):
            total += load(float32, at + 4 * step * i)
        for i in range(count):
            store(at + 4 * step * i, load(float32, at + 4 * step * i) / total)


def weigh_streams() -> Body:
    """Make the kernel that turns n logits of each token into weights, after logits * scale + base. There is one scale
    for each kind of weights. See `localinfer.graph.properties.hyper_connections`."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n, tokens = args.count, args.n, load(int64, args.tokens)
        for token in range(tokens * chunk_index // n_chunks, tokens * (chunk_index + 1) // n_chunks):
            row = args.x + 4 * n * token
            for i in range(n):
                factor = load(float32, args.scale + 4 * min(i // count, 2))
                store(row + 4 * i, load(float32, row + 4 * i) * factor + load(float32, args.base + 4 * i))
            sigmoid(row, min(n, 2 * count))
            add_to_all(row, count, args.eps)
            if n > count:
                for i in range(count, 2 * count):
                    value = load(float32, row + 4 * i) * float32(args.magnitude)
                    store(row + 4 * i, value + float32(args.output_eps))
            matrix = row + 8 * count
            if args.iterations and n > count:
                for number in range(count):
                    softmax(matrix + 4 * count * number, count)
                add_to_all(matrix, count * count, args.eps)
                normalize_lines(matrix, count, 1, count, args.eps)
                for _ in range(args.iterations - 1):
                    normalize_lines(matrix, count, count, 1, args.eps)
                    normalize_lines(matrix, count, 1, count, args.eps)

    return body


def collapse() -> Body:
    """Make the kernel y = sum of weight * stream, with the first `count` of each token's weights."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n, tokens = args.count, args.n, load(int64, args.tokens)
        for token in range(tokens * chunk_index // n_chunks, tokens * (chunk_index + 1) // n_chunks):
            row, weights = args.x + 4 * count * n * token, args.weights + 4 * args.n_weights * token
            for i in range(0, 4 * n, 64):
                total = splat(f32x16, float32(0.0))
                for number in range(count):
                    weight = splat(f32x16, load(float32, weights + 4 * number))
                    total = fma(weight, load(f32x16, row + 4 * n * number + i), total)
                store(args.y + 4 * n * token + i, total)

    return body


def mix() -> Body:
    """Make the kernel that replaces each stream with the mixed streams plus its weight times y. Without a matrix in the
    weights, streams are not mixed."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n, tokens = args.count, args.n, load(int64, args.tokens)
        has_matrix = args.n_weights > 2 * count
        for token in range(tokens * chunk_index // n_chunks, tokens * (chunk_index + 1) // n_chunks):
            row, weights = args.x + 4 * count * n * token, args.weights + 4 * args.n_weights * token
            matrix = weights + 8 * count
            for i in range(0, 4 * n, 64):
                y = load(f32x16, args.y + 4 * n * token + i)
                for number in range(count):
                    total = splat(f32x16, load(float32, weights + 4 * (count + number))) * y
                    if has_matrix:
                        for other in range(count):
                            weight = splat(f32x16, load(float32, matrix + 4 * (count * other + number)))
                            total = fma(weight, load(f32x16, row + 4 * n * other + i), total)
                    else:
                        total = total + load(f32x16, row + 4 * n * number + i)
                    store(scratch + 64 * number, total)
                for number in range(count):
                    store(row + 4 * n * number + i, load(f32x16, scratch + 64 * number))

    return body
