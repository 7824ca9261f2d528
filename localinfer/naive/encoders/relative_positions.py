"""Decomposed relative positions (Li et al., 2022, "MViTv2"), which Segment Anything has: the score of a query and a key
includes q . H[distance of their rows] + q . W[distance of their columns].

Queries get their products with the embeddings of all rows and columns of the grid as further values, and keys the
number 1 at their own row and column. So the product of the longer queries and keys is the whole score.
"""

import numpy as np

from localinfer.naive.formulas import Floats


def with_positions(
    q: Floats, k: Floats, tables: tuple[Floats, Floats], grid: tuple[int, int], factor: float
) -> tuple[Floats, Floats]:
    """Return longer queries and keys, (rows, heads, size + height + width), for rows [row][head][value] in grids of
    this size, one after the other. A table has the embeddings of distances from -(length - 1) to length - 1."""
    (by_row, by_column), (height, width) = tables, grid
    y, x = np.divmod(np.arange(len(q)) % (height * width), width)
    of_rows = by_row[y[:, None] - np.arange(height) + height - 1]  # (rows, height, size)
    of_columns = by_column[x[:, None] - np.arange(width) + width - 1]
    products = [factor * np.einsum("rhc,rlc->rhl", q, each) for each in (of_rows, of_columns)]
    ones = np.concatenate([np.eye(height, dtype=k.dtype)[y], np.eye(width, dtype=k.dtype)[x]], axis=1)
    at_own_place = np.broadcast_to(ones[:, None], (*k.shape[:2], height + width))
    return np.concatenate([q, *products], axis=2), np.concatenate([k, at_own_place], axis=2)
