"""Root mean square normalisation (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight."""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from quant.jit.threads import share
from quant.jit.vectors import f32x16, fma, inline, load, splat, sqrt, store, total
from quant.products.activations import groups_word

Body = Callable[..., None]


@inline
def inverse_rms(x: int, n: int, eps: float) -> Any:
    """1 / sqrt(mean(x^2) + eps) of n floats, n a multiple of 16."""
    squares = splat(f32x16, float32(0.0))
    for i in range(0, n, 16):
        v = load(f32x16, x + 4 * i)
        squares = fma(v, v, squares)
    return float32(1.0) / sqrt(total(squares) / float32(n) + float32(eps))


@inline
def normalize(x: int, weight: int, n: int, eps: float, y: int) -> None:
    """y = x normalised; x and y may be the same."""
    factor = splat(f32x16, inverse_rms(x, n, eps))
    for i in range(0, n, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) * factor * load(f32x16, weight + 4 * i))


def rms_norm(tile: int, passes: int) -> Body:
    """The kernel y = norm(x), and q = y quantized unless q is 0; the tokens of a tile stay together."""
    quantize_groups, together = groups_word(tile, passes), max(tile, 1)

    def body(tokens, x, weight, n, eps, y, q, part, parts, scratch):
        first, end = share(load(int64, tokens), together, part, parts)
        for token in range(first, end):
            normalize(x + 4 * n * token, weight, n, eps, y + 4 * n * token)
            if q:
                quantize_groups(y + 4 * n * token, q, token, 0, n // 32, n)

    return body


def add_norm() -> Body:
    """The kernel x += norm(branch): a branch that is normalised before it joins the residual stream."""

    def body(tokens, x, branch, weight, n, eps, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            source, place = branch + 4 * n * token, x + 4 * n * token
            normalize(source, weight, n, eps, source)
            for i in range(0, n, 16):
                store(place + 4 * i, load(f32x16, place + 4 * i) + load(f32x16, source + 4 * i))

    return body


def pick() -> Body:
    """The kernel y[i] = x[rows[i]]: the tokens whose logits are asked for."""

    def body(tokens, x, rows, n, y, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            source = x + 4 * n * int64(load(int32, rows + 4 * token))
            for i in range(0, n, 16):
                store(y + 4 * (n * token + i), load(f32x16, source + 4 * i))

    return body
