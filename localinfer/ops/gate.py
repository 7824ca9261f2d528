"""The gated unit of the feed-forward network (Shazeer, 2020): y = act(gate) * up."""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from quant.activations import group_word
from quant.vectors import exp, f32x16, fma, inline, load, splat, store

Body = Callable[..., None]


@inline
def logistic_product(x: Any, u: Any) -> Any:
    """x * sigmoid(u)."""
    one = splat(f32x16, float32(1.0))
    return x / (one + exp(splat(f32x16, float32(0.0)) - u))


@inline
def silu(x: Any) -> Any:
    """x * sigmoid(x) (Elfwing et al., 2017)."""
    return logistic_product(x, x)


@inline
def gelu_tanh(x: Any) -> Any:
    """x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016)."""
    cubed = x * x * x
    inner = fma(cubed, splat(f32x16, float32(0.044715)), x)
    return logistic_product(x, inner * splat(f32x16, float32(1.5957691216057308)))


ACTIVATIONS = {"silu": silu, "gelu": gelu_tanh}


def gated(activation: str, tile: int, passes: int) -> Body:
    """The kernel gate = act(gate) * up, and q = that quantized unless q is 0.

    Threads share groups of 32 columns of the tokens of a tile, which lie in the same cache lines.
    """
    act, quantize_group, together = ACTIVATIONS[activation], group_word(tile, passes), max(tile, 1)

    def body(tokens, gate, up, n, q, part, parts, scratch):
        count, groups = load(int64, tokens), n // 32
        items = (count + together - 1) // together * groups
        for item in range(items * part // parts, items * (part + 1) // parts):
            first, group = item // groups * together, item % groups
            for token in range(first, min(first + together, count)):
                a, b = gate + 4 * n * token + 128 * group, up + 4 * n * token + 128 * group
                v0 = act(load(f32x16, a)) * load(f32x16, b)
                v1 = act(load(f32x16, a + 64)) * load(f32x16, b + 64)
                store(a, v0)
                store(a + 64, v1)
                if q:
                    quantize_group(v0, v1, q, token, group, n)

    return body
