"""Sums of whole rows: a bias or a branch joins the residual stream, logits are scaled and kept within bounds."""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.ops.norm import normalize
from localinfer.ops.softmax import tanh
from quant.jit.vectors import f32x16, inline, load, splat, store

Body = Callable[..., None]


@inline
def add_row(x: int, y: int, factor: float, n: int) -> None:
    """x += factor * y for n floats, n a multiple of 16."""
    scale = splat(f32x16, float32(factor))
    for i in range(0, n, 16):
        store(x + 4 * i, load(f32x16, x + 4 * i) + scale * load(f32x16, y + 4 * i))


def add_bias() -> Body:
    """The kernel x[token] += bias."""

    def body(tokens, bias, n, x, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            add_row(x + 4 * n * token, bias, 1.0, n)

    return body


def add() -> Body:
    """The kernel x += factor * branch."""

    def body(tokens, branch, factor, n, x, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            add_row(x + 4 * n * token, branch + 4 * n * token, factor, n)

    return body


def add_norm() -> Body:
    """The kernel x += norm(branch): a branch that is normalised before it joins the residual stream."""

    def body(tokens, branch, weight, n, eps, x, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            source = branch + 4 * n * token
            normalize(source, weight, n, eps, source)
            add_row(x + 4 * n * token, source, 1.0, n)

    return body


def pick() -> Body:
    """The kernel y[i] = x[numbers[i]]: the tokens whose logits are asked for."""

    def body(tokens, x, numbers, n, y, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            source = x + 4 * n * int64(load(int32, numbers + 4 * token))
            for i in range(0, n, 16):
                store(y + 4 * (n * token + i), load(f32x16, source + 4 * i))

    return body


@inline
def softened(x: Any, factor: float, cap: float) -> Any:
    """factor * x and, unless the cap is 0, cap * tanh of that over cap."""
    scaled = x * splat(f32x16, float32(factor))
    if cap == 0.0:
        return scaled
    return tanh(scaled * splat(f32x16, float32(1.0) / float32(cap))) * splat(f32x16, float32(cap))


def soft_cap() -> Body:
    """The kernel x = cap * tanh(factor * x / cap) (Bello et al., 2016), or factor * x where cap is 0; for any n."""

    def body(tokens, factor, cap, n, x, part, parts, scratch):
        end = load(int64, tokens) * n
        first, last = end * part // parts // 16 * 16, end * (part + 1) // parts // 16 * 16
        for i in range(first, last, 16):
            store(x + 4 * i, softened(load(f32x16, x + 4 * i), factor, cap))
        if part == parts - 1:
            for i in range(last, end):
                one = softened(splat(f32x16, load(float32, x + 4 * i)), factor, cap)
                store(scratch, one)
                store(x + 4 * i, load(float32, scratch))

    return body
