"""AltUp (Baykal et al., 2023): several residual streams, [token][stream][value]. Layers only compute with the
first.

Before a layer, all streams are predicted; after it, they are corrected by the prediction error of the first one. The
coefficients depend on the token: `m` has one number per stream and token.

    predicted[j] = x[j] + sum of c[j][i] * x[i],                   c[j][i] = weight[j * count + i] . m
    x[j]         = predicted[j] + c[j] * (y - predicted[0]),       c[j]    = 1 + weight[j] . m

The module also has the Gaussian top-k of Gemma 3n's gates.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.norm import mean_square, subtract_mean
from quant.jit.vectors import f32x16, fma, inline, load, maximum, splat, sqrt, store

Body = Callable[..., None]
MIN_MEAN_SQUARE = 1e-5  # lower bound for the mean square of a row that is rescaled


@inline
def weighted_sum(weight: int, m: int, count: int) -> Any:
    """Return weight . m of `count` numbers."""
    s = float32(0.0)
    for i in range(count):
        s += load(float32, weight + 4 * i) * load(float32, m + 4 * i)
    return s


def copy_slice() -> Body:
    """Make the kernel that copies n values of each row of x, from x_first on, to y_first in y."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            source, out = (
                args.x + 4 * (args.x_n * token + args.x_first),
                args.y + 4 * (args.y_n * token + args.y_first),
            )
            for i in range(0, 4 * args.n, 64):
                store(out + i, load(f32x16, source + i))

    return body


def match_rms() -> Body:
    """Make the kernel y *= rms(x) / rms(y), row by row."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            out = args.y + 4 * n * token
            mean = max(mean_square(out, n), float32(MIN_MEAN_SQUARE))
            factor = splat(f32x16, sqrt(mean_square(args.x + 4 * n * token, n)) / sqrt(mean))
            for i in range(0, 4 * n, 64):
                store(out + i, load(f32x16, out + i) * factor)

    return body


def predict() -> Body:
    """Make the kernel that predicts the streams. `first` receives a copy of the first one."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n = args.count, args.n
        end = load(int64, args.tokens) * (chunk_index + 1) // n_chunks
        for token in range(load(int64, args.tokens) * chunk_index // n_chunks, end):
            row, out = args.x + 4 * count * n * token, args.predicted + 4 * count * n * token
            for pair in range(count * count):
                store(
                    scratch + 4 * pair, weighted_sum(args.weight + 4 * count * pair, args.m + 4 * count * token, count)
                )
            for i in range(0, 4 * n, 64):
                for j in range(count):
                    s = load(f32x16, row + 4 * n * j + i)
                    for k in range(count):
                        c = splat(f32x16, load(float32, scratch + 4 * (count * j + k)))
                        s = fma(c, load(f32x16, row + 4 * n * k + i), s)
                    store(out + 4 * n * j + i, s)
                store(args.first + 4 * n * token + i, load(f32x16, out + i))

    return body


def correct() -> Body:
    """Make the kernel that corrects the streams by y. `first` receives the first one times `scale`."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n = args.count, args.n
        end = load(int64, args.tokens) * (chunk_index + 1) // n_chunks
        for token in range(load(int64, args.tokens) * chunk_index // n_chunks, end):
            row, source = args.x + 4 * count * n * token, args.predicted + 4 * count * n * token
            for j in range(count):
                c = splat(
                    f32x16, float32(1.0) + weighted_sum(args.weight + 4 * count * j, args.m + 4 * count * token, count)
                )
                for i in range(0, 4 * n, 64):
                    off = load(f32x16, args.y + 4 * n * token + i) - load(f32x16, source + i)
                    store(row + 4 * n * j + i, fma(c, off, load(f32x16, source + 4 * n * j + i)))
            for i in range(0, 4 * n, 64):
                store(args.first + 4 * n * token + i, load(f32x16, row + i) * load(f32x16, args.scale + i))

    return body


def add_to_inactive() -> Body:
    """Make the kernel that adds a branch to all streams but the first."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        end = load(int64, args.tokens) * (chunk_index + 1) // n_chunks
        for token in range(load(int64, args.tokens) * chunk_index // n_chunks, end):
            for j in range(1, args.count):
                out = args.x + 4 * args.n * (args.count * token + j)
                for i in range(0, 4 * args.n, 64):
                    store(out + i, load(f32x16, out + i) + load(f32x16, args.branch + 4 * args.n * token + i))

    return body


def gaussian_topk() -> Body:
    """Make the kernel x = max(0, x - mean - deviations * standard deviation), row by row."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        count, zero = load(int64, args.tokens), splat(f32x16, float32(0.0))
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            row = args.x + 4 * n * token
            subtract_mean(row, n, row)
            least = splat(f32x16, float32(args.deviations) * sqrt(mean_square(row, n)))
            for i in range(0, 4 * n, 64):
                store(row + i, maximum(load(f32x16, row + i) - least, zero))

    return body
