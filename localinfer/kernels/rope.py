"""Rotary position embedding (Su et al., 2021), and the head norms before or after it.

A token's table row is cos[n_rot/2], then sin[n_rot/2].
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.norm import normalize, normalize_unweighted
from quant.jit.vectors import f32x16, inline, load, store

Body = Callable[..., None]


@inline
def rotate_interleaved(x: int, n_rot: int, table: int) -> None:
    """Rotate the pairs (0, 1), (2, 3), ..., as in GGUF's llama architecture."""
    for i in range(n_rot // 2):
        cos, sin = load(float32, table + 4 * i), load(float32, table + 2 * n_rot + 4 * i)
        a, b = load(float32, x + 8 * i), load(float32, x + 8 * i + 4)
        store(x + 8 * i, a * cos - b * sin)
        store(x + 8 * i + 4, a * sin + b * cos)


@inline
def rotate_halves(x: int, n_rot: int, table: int) -> None:
    """Rotate the pairs (0, n/2), (1, n/2 + 1), ..., as in GPT-NeoX."""
    far = 2 * n_rot
    for i in range(n_rot // 2):
        cos, sin = load(float32, table + 4 * i), load(float32, table + far + 4 * i)
        a, b = load(float32, x + 4 * i), load(float32, x + far + 4 * i)
        store(x + 4 * i, a * cos - b * sin)
        store(x + far + 4 * i, a * sin + b * cos)


@inline
def rotate_parts(x: int, n_rot: int, table: int, distance: int) -> None:
    """Rotate the pairs (0, distance), (1, distance + 1), ..., (2 distance, 3 distance), ...: each part of 2 distance
    values as `rotate_halves` does."""
    for i in range(n_rot // 2):
        cos, sin = load(float32, table + 4 * i), load(float32, table + 2 * n_rot + 4 * i)
        first = x + 4 * (i + i // distance * distance)
        a, b = load(float32, first), load(float32, first + 4 * distance)
        store(first, a * cos - b * sin)
        store(first + 4 * distance, a * sin + b * cos)


@inline
def rotate_quarters(x: int, n_rot: int, table: int) -> None:
    """Rotate each half. n_rot is a multiple of 4."""
    rotate_parts(x, n_rot, table, n_rot // 4)


@inline
def rotate_sixths(x: int, n_rot: int, table: int) -> None:
    """Rotate each third. n_rot is a multiple of 6."""
    rotate_parts(x, n_rot, table, n_rot // 6)


ROTATE = {
    "interleaved": rotate_interleaved, "halves": rotate_halves, "quarters": rotate_quarters, "sixths": rotate_sixths,
}  # fmt: skip


@inline
def widen(head: int, size: int, out: int, dim: int) -> None:
    """Copy a head of `size` values and pad it with zeros to `dim`."""
    whole = size // 16 * 16
    for i in range(0, whole, 16):
        store(out + 4 * i, load(f32x16, head + 4 * i))
    for i in range(whole, dim):
        store(out + 4 * i, load(float32, head + 4 * i) if i < size else float32(0.0))


def make_rotate_head(pairs: str, norm: str) -> Any:
    """Make rotate_head(x, size, n_rot, table, weight, eps): rotate a head in place, with RMSNorm "before_rope",
    "after_rope", "unweighted" after RoPE, or "none"."""
    rotate, before, after, unweighted = ROTATE[pairs], norm == "before_rope", norm == "after_rope", norm == "unweighted"

    @inline
    def rotate_head(x: int, size: int, n_rot: int, table: int, weight: int, eps: float) -> None:
        if before:
            normalize(x, weight, size, eps, x)
        rotate(x, n_rot, table)
        if after:
            normalize(x, weight, size, eps, x)
        if unweighted:
            normalize_unweighted(x, size, eps, x)

    return rotate_head


def rope(pairs: str, norm: str) -> Body:
    """Make the kernel that rotates every head of x to y. Heads have `size` values in x and are padded with zeros to
    `dim` in y. x and y may be the same if these are equal."""
    rotate_head = make_rotate_head(pairs, norm)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        items = load(int64, args.tokens) * args.heads
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            source, out = args.x + 4 * args.size * item, args.y + 4 * args.dim * item
            if source != out:
                widen(source, args.size, out, args.dim)
            rotate_head(
                out, args.size, args.n_rot, args.table + 4 * args.n_rot * (item // args.heads), args.weight, args.eps
            )

    return body
