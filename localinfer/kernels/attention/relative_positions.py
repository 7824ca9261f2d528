"""Decomposed relative positions (Li et al., 2022, "MViTv2") as further dimensions of queries and keys.

The score of a query and a key includes q . H[row distance] + q . W[column distance]. A query gets its products with all
rows and columns of the grid, a key the number 1 at its own row and column, so that the product of both has the sum.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.head_slices import copy
from quant.jit.vectors import f32x16, fma, inline, load, reduce_sum, splat, store

Body = Callable[..., None]


@inline
def dot(a: int, b: int, n: int) -> float:
    """Return the product of two rows of n floats, n a multiple of 16."""
    s = splat(f32x16, float32(0.0))
    for i in range(0, 4 * n, 64):
        s = fma(load(f32x16, a + i), load(f32x16, b + i), s)
    return reduce_sum(s)


def add_dimensions() -> Body:
    """Make the kernel that writes queries and keys of `dim` values: those of `size`, then `height` and `width` values
    for the rows and columns of the grid, then zeros.

    Token t is at the place t % (height * width) of a grid, row after row. The tables, [2 * length - 1][size], have the
    embedding of each distance, of -(length - 1) first; products with them are multiplied by `factor`."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        heads, size, height, width = args.heads, args.size, args.height, args.width
        items, row_bytes = load(int64, args.tokens) * heads, 4 * args.size
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            place = item // heads % (height * width)
            y, x = place // width, place % width
            query, out = args.q + row_bytes * item, args.q_out + 4 * args.dim * item
            key, key_out = args.k + row_bytes * item, args.k_out + 4 * args.dim * item
            copy(query, size, out)
            copy(key, size, key_out)
            for i in range(size, args.dim):
                store(out + 4 * i, float32(0.0))
                store(key_out + 4 * i, float32(0.0))
            for i in range(height):
                product = dot(query, args.by_row + row_bytes * (y - i + height - 1), size)
                store(out + 4 * (size + i), float32(product * args.factor))
            for i in range(width):
                product = dot(query, args.by_column + row_bytes * (x - i + width - 1), size)
                store(out + 4 * (size + height + i), float32(product * args.factor))
            store(key_out + 4 * (size + y), float32(1.0))
            store(key_out + 4 * (size + height + x), float32(1.0))

    return body
