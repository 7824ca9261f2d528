"""Naive float64 twins of kernels that only encoders of images and sounds use."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.naive.formulas import Floats, soft_cap, softmax


def average_rows(x: Floats, numbers: NDArray[np.int32]) -> Floats:
    """Return the mean of the rows of x that each row of `numbers` names."""
    return np.stack([sum(x[number] for number in row) / len(row) for row in numbers])


def weigh_rows(x: Floats, numbers: NDArray[np.int32], weight: Floats, bias: Floats) -> Floats:
    """Return bias + the sum of weight[j] * x[numbers[i][j]] for each i, where row -1 is zeros."""
    padded = np.concatenate([x, np.zeros((1, x.shape[1]))])
    return bias + np.stack([sum(w * padded[number] for w, number in zip(weight, row, strict=True)) for row in numbers])


def cumulative_norm(x: Floats, size: int, weight: Floats, eps: float) -> Floats:
    """Normalize each `size` consecutive rows of x by the mean of all rows up to their last one, and by the mean squared
    distance of all rows up to it, each from the mean of its own group."""
    groups, distances, results = x.reshape(-1, size * x.shape[1]), [], []
    for number, group in enumerate(groups, 1):
        mean = groups[:number].mean()
        distances.append(((group - mean) ** 2).sum())
        results.append((group - mean) / np.sqrt(sum(distances) / groups[:number].size + eps))
    return np.stack(results).reshape(x.shape) * weight


def relative_attention(
    queries: tuple[Floats, Floats], k: Floats, v: Floats, p: Floats, first: int,
    spans: Sequence[tuple[int, int]], cap: float = 0.0,
) -> Floats:  # fmt: skip
    """Return the attention of one head, (rows, size): the score of row i for row j, from the first to the last of
    spans[i], is q[i] . k[j] + u[i] . p[first + j - i], soft-capped. `queries` are q and u."""
    (q, u), y = queries, np.zeros_like(v)
    for i, (oldest, newest) in enumerate(spans):
        scores = [q[i] @ k[j] + u[i] @ p[first + j - i] for j in range(oldest, newest + 1)]
        y[i] = softmax(soft_cap(np.array(scores), cap)) @ v[oldest : newest + 1]
    return y


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
