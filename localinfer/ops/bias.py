"""Biases: x += bias, the same for every token."""

from collections.abc import Callable

from numba import int64

from quant.jit.vectors import f32x16, load, store

Body = Callable[..., None]


def add_bias() -> Body:
    """The kernel x[token] += bias; n is a multiple of 16."""

    def body(tokens, x, bias, n, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            row = x + 4 * n * token
            for i in range(0, n, 16):
                store(row + 4 * i, load(f32x16, row + 4 * i) + load(f32x16, bias + 4 * i))

    return body
