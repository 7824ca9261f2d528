"""Attention residuals (Kimi Team, 2026): a branch reads a mean of residual streams, of which earlier layers left some.

The score of a stream is the product of its RMSNorm with a vector, and the weights of the mean are the softmax of the
scores.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.experts import softmax
from localinfer.kernels.norm import inverse_rms
from quant.jit.vectors import f32x16, fma, inline, load, reduce_sum, splat, store

Body = Callable[..., None]


@inline
def score(x: int, weight: int, n: int, eps: float) -> Any:
    """Return weight . RMSNorm(x) of n floats, n a multiple of 16."""
    total = splat(f32x16, float32(0.0))
    for i in range(0, 4 * n, 64):
        total = fma(load(f32x16, x + i), load(f32x16, weight + i), total)
    return reduce_sum(total) * inverse_rms(x, n, eps)


def attend_streams() -> Body:
    """Make the kernel y = the mean of x and of the first `count` rows of n values in `earlier`, which has `earlier_n`
    values for each token."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count, n, tokens = args.count, args.n, load(int64, args.tokens)
        for token in range(tokens * chunk_index // n_chunks, tokens * (chunk_index + 1) // n_chunks):
            x, earlier, y = args.x + 4 * n * token, args.earlier + 4 * args.earlier_n * token, args.y + 4 * n * token
            for number in range(count):
                store(scratch + 4 * number, score(earlier + 4 * n * number, args.weight, n, args.eps))
            store(scratch + 4 * count, score(x, args.weight, n, args.eps))
            softmax(scratch, count + 1)
            for i in range(0, 4 * n, 64):
                total = splat(f32x16, load(float32, scratch + 4 * count)) * load(f32x16, x + i)
                for number in range(count):
                    weight = splat(f32x16, load(float32, scratch + 4 * number))
                    total = fma(weight, load(f32x16, earlier + 4 * n * number + i), total)
                store(y + i, total)

    return body
