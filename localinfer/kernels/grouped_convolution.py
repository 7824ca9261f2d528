"""The causal convolution of DFlash 2 over the tokens of a block, whose filter depends on the token.

    y[t] = sum of (base[tap] + dynamic[t][tap]) * x[t - tap]

`base` has a number for each value, `dynamic` one for each group of values. Nothing precedes the first token.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from quant.jit.vectors import f32x16, fma, load, splat, store

Body = Callable[..., None]


def convolve_groups() -> Body:
    """Make the kernel of the convolution of x, rows of n values, with filters of `taps` numbers.

    `base` has two filters, of which `side` chooses one, and so has each row of `dynamic`, for n // size groups of
    `size` values, a multiple of 16.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n, size, taps, groups, tokens = args.n, args.size, args.taps, args.n // args.size, load(int64, args.tokens)
        base = args.base + 4 * args.side * taps * n
        for token in range(tokens * chunk_index // n_chunks, tokens * (chunk_index + 1) // n_chunks):
            dynamic = args.dynamic + 4 * (2 * token + args.side) * taps * groups
            for first in range(0, n, 16):
                total = splat(f32x16, float32(0.0))
                for tap in range(min(taps, token + 1)):
                    added = splat(f32x16, load(float32, dynamic + 4 * (tap * groups + first // size)))
                    factor = load(f32x16, base + 4 * (tap * n + first)) + added
                    total = fma(factor, load(f32x16, args.x + 4 * ((token - tap) * n + first)), total)
                store(args.y + 4 * (token * n + first), total)

    return body
