"""Attention without a causal mask: each row attends to a span of rows, from its oldest to its newest one.

The span is all rows of an image, those of a window (Qwen2.5-VL, Segment Anything), or the near rows of a sound. Queries
that are not rows of the input, as those of a resampler, attend in the same way: cross-attention.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.naive.formulas import Floats, soft_cap, softmax

Indices = NDArray[np.int32]
MAX_ROWS = 1024  # of queries whose scores are computed at once


def attend(q: Floats, k: Floats, v: Floats, spans: tuple[Indices, Indices], cap: float = 0.0) -> Floats:
    """Return softmax(q . k) . v for each head: (heads, queries, size), given scaled queries, and keys and values
    (heads, rows, size). Scores are soft-capped at `cap`, unless it is 0. `spans` are the oldest and the newest row of
    each query."""
    y = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    for queries, rows in equal_spans(*spans):
        for head in range(len(q)):
            scores = soft_cap(q[head, queries] @ k[head, rows].T, cap)
            y[head, queries] = softmax(scores) @ v[head, rows]
    return y


def equal_spans(oldest: Indices, newest: Indices) -> Iterator[tuple[slice, slice]]:
    """Yield consecutive queries with the same span, and the rows of it."""
    first = 0
    while first < len(oldest):
        end = first + 1
        while end < min(len(oldest), first + MAX_ROWS) and (oldest[end], newest[end]) == (oldest[first], newest[first]):
            end += 1
        yield slice(first, end), slice(int(oldest[first]), int(newest[first]) + 1)
        first = end


def attend_with_distances(
    queries: tuple[Floats, Floats], k: Floats, v: Floats, p: Floats, first: int,
    spans: Sequence[tuple[int, int]], cap: float = 0.0,
) -> Floats:  # fmt: skip
    """Return the attention of one head, (queries, size), whose scores depend on distances by vectors p (Dai et al.,
    2019, "Transformer-XL"): the score of query i for row j, from the first to the last of spans[i], is
    q[i] . k[j] + u[i] . p[first + j - i], soft-capped. `queries` are q and u."""
    (q, u), y = queries, np.zeros((len(spans), v.shape[1]), v.dtype)
    for i, (oldest, newest) in enumerate(spans):
        vectors = p[first + oldest - i : first + newest + 1 - i]
        scores = k[oldest : newest + 1] @ q[i] + vectors @ u[i]
        y[i] = softmax(soft_cap(scores, cap)) @ v[oldest : newest + 1]
    return y
