"""Several residual streams side by side, [token][stream][value], of which a block computes with the first only: AltUp
(Baykal et al., 2023). Before the block, each stream is predicted; behind it, each is corrected by how far the first
prediction was off. By how much, tokens say themselves: `m` has as many numbers for each as there are streams.

    predicted[j] = x[j] + sum of c[j][i] * x[i],                   c[j][i] = weight[j * count + i] . m
    x[j]         = predicted[j] + c[j] * (y - predicted[0]),       c[j]    = 1 + weight[j] . m

And what keeps the largest values of a row, by mean and deviation (Gemma 3n's gates).
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.ops.norm import centre, mean_square
from quant.jit.vectors import f32x16, fma, inline, load, maximum, splat, sqrt, store

Body = Callable[..., None]
LEAST_SQUARE = 1e-5  # of what is made as long as something else


@inline
def weighed(weight: int, m: int, count: int) -> Any:
    """weight . m of a few numbers."""
    s = float32(0.0)
    for i in range(count):
        s += load(float32, weight + 4 * i) * load(float32, m + 4 * i)
    return s


def copy() -> Body:
    """The kernel that copies n values of each row of x, from x_first on, to y_first of y."""

    def body(tokens, x, x_n, x_first, n, y, y_n, y_first, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            source, place = x + 4 * (x_n * token + x_first), y + 4 * (y_n * token + y_first)
            for i in range(0, 4 * n, 64):
                store(place + i, load(f32x16, source + i))

    return body


def as_long() -> Body:
    """The kernel y *= |x| / |y|."""

    def body(tokens, x, n, y, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            place = y + 4 * n * token
            own = max(mean_square(place, n), float32(LEAST_SQUARE))
            factor = splat(f32x16, sqrt(mean_square(x + 4 * n * token, n)) / sqrt(own))
            for i in range(0, 4 * n, 64):
                store(place + i, load(f32x16, place + i) * factor)

    return body


def predict() -> Body:
    """The kernel that predicts streams; `first` is a copy of the first."""

    def body(tokens, x, m, weight, count, n, predicted, first, part, parts, scratch):
        end = load(int64, tokens) * (part + 1) // parts
        for token in range(load(int64, tokens) * part // parts, end):
            row, place = x + 4 * count * n * token, predicted + 4 * count * n * token
            for pair in range(count * count):
                store(scratch + 4 * pair, weighed(weight + 4 * count * pair, m + 4 * count * token, count))
            for i in range(0, 4 * n, 64):
                for j in range(count):
                    s = load(f32x16, row + 4 * n * j + i)
                    for k in range(count):
                        c = splat(f32x16, load(float32, scratch + 4 * (count * j + k)))
                        s = fma(c, load(f32x16, row + 4 * n * k + i), s)
                    store(place + 4 * n * j + i, s)
                store(first + 4 * n * token + i, load(f32x16, place + i))

    return body


def correct() -> Body:
    """The kernel that corrects streams by y; `first` is the first, times `scale`."""

    def body(tokens, y, predicted, m, weight, scale, count, n, x, first, part, parts, scratch):
        end = load(int64, tokens) * (part + 1) // parts
        for token in range(load(int64, tokens) * part // parts, end):
            row, source = x + 4 * count * n * token, predicted + 4 * count * n * token
            for j in range(count):
                c = splat(f32x16, float32(1.0) + weighed(weight + 4 * count * j, m + 4 * count * token, count))
                for i in range(0, 4 * n, 64):
                    off = load(f32x16, y + 4 * n * token + i) - load(f32x16, source + i)
                    store(row + 4 * n * j + i, fma(c, off, load(f32x16, source + 4 * n * j + i)))
            for i in range(0, 4 * n, 64):
                store(first + 4 * n * token + i, load(f32x16, row + i) * load(f32x16, scale + i))

    return body


def add_to_others() -> Body:
    """The kernel that adds a branch to all streams but the first."""

    def body(tokens, branch, count, n, x, part, parts, scratch):
        end = load(int64, tokens) * (part + 1) // parts
        for token in range(load(int64, tokens) * part // parts, end):
            for j in range(1, count):
                place = x + 4 * n * (count * token + j)
                for i in range(0, 4 * n, 64):
                    store(place + i, load(f32x16, place + i) + load(f32x16, branch + 4 * n * token + i))

    return body


def keep_largest() -> Body:
    """The kernel x = max(0, x - mean - deviations * standard deviation), row by row."""

    def body(tokens, deviations, n, x, part, parts, scratch):
        count, zero = load(int64, tokens), splat(f32x16, float32(0.0))
        for token in range(count * part // parts, count * (part + 1) // parts):
            row = x + 4 * n * token
            centre(row, n, row)
            least = splat(f32x16, float32(deviations) * sqrt(mean_square(row, n)))
            for i in range(0, 4 * n, 64):
                store(row + i, maximum(load(f32x16, row + i) - least, zero))

    return body
