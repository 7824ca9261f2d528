"""The scores of relative positions by their definition, which kernels and the naive forward pass compute in parts."""

import numpy as np

from localinfer.naive.formulas import Floats


def relative_scores(
    q: Floats, k: Floats, tables: tuple[Floats, Floats], grid: tuple[int, int], factor: float
) -> Floats:
    """Return q . k + factor * (q . H[row distance] + q . W[column distance]) for rows [row][head][value] in grids of
    this size, one after the other: (heads, queries, keys)."""
    scores = np.einsum("qhc,khc->hqk", q, k)
    places = [np.unravel_index(number % (grid[0] * grid[1]), grid) for number in range(len(q))]
    for i, of_query in enumerate(places):
        for j, of_key in enumerate(places):
            for table, length, a, b in zip(tables, grid, of_query, of_key, strict=True):
                scores[:, i, j] += factor * (q[i] @ table[a - b + length - 1])
    return scores
