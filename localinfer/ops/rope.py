"""Rotary position embedding (Su et al., 2021), and the normalisation of heads that comes with it.

A table row of a token holds cos[n_rot/2], then sin[n_rot/2].
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.ops.norm import normalize, scale_to_one
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


@inline
def widen(head: int, size: int, place: int, dim: int) -> None:
    """Copy a head of so many values to where there is room for more: those behind it are 0."""
    whole = size // 16 * 16
    for i in range(0, whole, 16):
        store(place + 4 * i, load(f32x16, head + 4 * i))
    for i in range(whole, dim):
        store(place + 4 * i, load(float32, head + 4 * i) if i < size else float32(0.0))


def rotate_head_word(pairs: str, norm: str) -> Any:
    """The word rotate_head(x, size, n_rot, table, weight, eps): a head rotated in place, and normalised "before" that,
    "after" it, after it but without weights ("to_one"), or at no time ("no")."""
    rotate, before, after, to_one = ROTATE[pairs], norm == "before", norm == "after", norm == "to_one"

    @inline
    def rotate_head(x: int, size: int, n_rot: int, table: int, weight: int, eps: float) -> None:
        if before:
            normalize(x, weight, size, eps, x)
        rotate(x, n_rot, table)
        if after:
            normalize(x, weight, size, eps, x)
        if to_one:
            scale_to_one(x, size, eps, x)

    return rotate_head


def rope(pairs: str, norm: str) -> Body:
    """The kernel y = x with every head of every token rotated: of `size` values in x, of `dim` in y, where those behind
    it are 0. x and y may be the same if these are."""
    rotate_head = rotate_head_word(pairs, norm)

    def body(tokens, x, heads, size, dim, n_rot, table, weight, eps, y, part, parts, scratch):
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            source, place = x + 4 * size * item, y + 4 * dim * item
            if source != place:
                widen(source, size, place, dim)
            rotate_head(place, size, n_rot, table + 4 * n_rot * (item // heads), weight, eps)

    return body
