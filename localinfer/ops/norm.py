"""Normalisation: by the root mean square (Zhang and Sennrich, 2019), y = x / sqrt(mean(x^2) + eps) * weight, and of
layers (Ba et al., 2016), y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias."""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from quant.jit.threads import share
from quant.jit.vectors import f32x16, fma, inline, load, splat, sqrt, store, total
from quant.products.activations import groups_word

Body = Callable[..., None]


@inline
def mean_square(x: int, n: int) -> Any:
    """mean(x^2) of n floats."""
    squares, whole, rest = splat(f32x16, float32(0.0)), n // 16 * 16, float32(0.0)
    for i in range(0, whole, 16):
        v = load(f32x16, x + 4 * i)
        squares = fma(v, v, squares)
    for i in range(whole, n):
        rest += load(float32, x + 4 * i) * load(float32, x + 4 * i)
    return (total(squares) + rest) / float32(n)


@inline
def inverse_rms(x: int, n: int, eps: float) -> Any:
    """1 / sqrt(mean(x^2) + eps) of n floats."""
    return float32(1.0) / sqrt(mean_square(x, n) + float32(eps))


@inline
def normalize(x: int, weight: int, n: int, eps: float, y: int) -> None:
    """y = x normalised by the root mean square; x and y may be the same."""
    inverse, whole = inverse_rms(x, n, eps), n // 16 * 16
    factor = splat(f32x16, inverse)
    for i in range(0, whole, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) * factor * load(f32x16, weight + 4 * i))
    for i in range(whole, n):
        store(y + 4 * i, load(float32, x + 4 * i) * inverse * load(float32, weight + 4 * i))


@inline
def scale_to_one(x: int, n: int, eps: float, y: int) -> None:
    """The same without weights."""
    inverse, whole = inverse_rms(x, n, eps), n // 16 * 16
    factor = splat(f32x16, inverse)
    for i in range(0, whole, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) * factor)
    for i in range(whole, n):
        store(y + 4 * i, load(float32, x + 4 * i) * inverse)


@inline
def centre(x: int, n: int, y: int) -> None:
    """y = x without its mean."""
    sums, whole, rest = splat(f32x16, float32(0.0)), n // 16 * 16, float32(0.0)
    for i in range(0, whole, 16):
        sums = sums + load(f32x16, x + 4 * i)
    for i in range(whole, n):
        rest += load(float32, x + 4 * i)
    middle = (total(sums) + rest) / float32(n)
    for i in range(0, whole, 16):
        store(y + 4 * i, load(f32x16, x + 4 * i) - splat(f32x16, middle))
    for i in range(whole, n):
        store(y + 4 * i, load(float32, x + 4 * i) - middle)


@inline
def normalize_layer(x: int, weight: int, bias: int, n: int, eps: float, y: int) -> None:
    """y = x normalised to mean 0 and variance 1, times weight, plus bias unless that is 0; n is a multiple of 16."""
    centre(x, n, y)
    normalize(y, weight, n, eps, y)
    if bias:
        for i in range(0, n, 16):
            store(y + 4 * i, load(f32x16, y + 4 * i) + load(f32x16, bias + 4 * i))


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


def layer_norm(tile: int, passes: int) -> Body:
    """The kernel y = norm(x) by mean and variance; likewise."""
    quantize_groups, together = groups_word(tile, passes), max(tile, 1)

    def body(tokens, x, weight, bias, n, eps, y, q, part, parts, scratch):
        first, end = share(load(int64, tokens), together, part, parts)
        for token in range(first, end):
            normalize_layer(x + 4 * n * token, weight, bias, n, eps, y + 4 * n * token)
            if q:
                quantize_groups(y + 4 * n * token, q, token, 0, n // 32, n)

    return body


def norm_parts() -> Body:
    """The kernel that normalises each of so many parts of a row by its mean square, with weights `step` floats behind
    those of the last part, or with none where `weight` is 0; x and y may be the same."""

    def body(tokens, x, weight, step, count, size, eps, y, part, parts, scratch):
        items = load(int64, tokens) * count
        for item in range(items * part // parts, items * (part + 1) // parts):
            source, place = x + 4 * size * item, y + 4 * size * item
            if weight:
                normalize(source, weight + 4 * step * (item % count), size, eps, place)
            else:
                scale_to_one(source, size, eps, place)

    return body


def norm_heads() -> Body:
    """The kernel that normalises every head by mean and variance in place, with weights of its own."""

    def body(tokens, weight, heads, size, eps, x, part, parts, scratch):
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            head = x + 4 * size * item
            centre(head, size, head)
            normalize(head, weight + 4 * size * (item % heads), size, eps, head)

    return body
