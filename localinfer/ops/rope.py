"""Rotary position embedding (Su et al., 2021), and per-head normalisation before it.

A table row of a token holds cos[n_rot/2], then sin[n_rot/2].
"""

from collections.abc import Callable

from numba import float32, int64

from localinfer.ops.norm import normalize
from quant.jit.vectors import f32x16, inline, load, store

Body = Callable[..., None]

@inline
def rotate_neighbours(x: int, n_rot: int, table: int) -> None:
    """Pairs are (0, 1), (2, 3), ...: GGUF's llama."""
    for i in range(n_rot // 2):
        cos, sin = load(float32, table + 4 * i), load(float32, table + 2 * n_rot + 4 * i)
        a, b = load(float32, x + 8 * i), load(float32, x + 8 * i + 4)
        store(x + 8 * i, a * cos - b * sin)
        store(x + 8 * i + 4, a * sin + b * cos)


@inline
def rotate_halves(x: int, n_rot: int, table: int) -> None:
    """Pairs are (0, n/2), (1, n/2 + 1), ...: GPT-NeoX's way."""
    far = 2 * n_rot
    for i in range(n_rot // 2):
        cos, sin = load(float32, table + 4 * i), load(float32, table + far + 4 * i)
        a, b = load(float32, x + 4 * i), load(float32, x + far + 4 * i)
        store(x + 4 * i, a * cos - b * sin)
        store(x + far + 4 * i, a * sin + b * cos)


ROTATE = {"neighbours": rotate_neighbours, "halves": rotate_halves}


def rope(pairs: str, norm: int) -> Body:
    """The kernel y = rotate(norm(x)) for every head of every token; x and y may be the same, norm may be off (0)."""
    rotate = ROTATE[pairs]

    def body(tokens, x, heads, head_dim, n_rot, table, weight, eps, y, part, parts, scratch):
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            source, place = x + 4 * head_dim * item, y + 4 * head_dim * item
            if norm:
                normalize(source, weight, head_dim, eps, place)
            elif source != place:
                for i in range(0, head_dim, 16):
                    store(place + 4 * i, load(f32x16, source + 4 * i))
            rotate(place, n_rot, table + 4 * n_rot * (item // heads))

    return body
