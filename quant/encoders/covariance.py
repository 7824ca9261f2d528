"""The covariance of a matrix's inputs: X^T X, summed over chunks of text, with an estimate of its sampling noise.

    covariance = Covariance.empty(n)
    covariance.add(x)           # float32 (tokens, n): the inputs of the matrix during a chunk
    covariance.shrinkage        # 0: more text would give the same products; 1: the products are noise

A text of a few thousand tokens shows many correlations between n inputs that are chance. The error of the estimate is
least if its off-diagonal elements are reduced by the ratio of its variance to its square (Ledoit & Wolf, 2004). Tokens
of one chunk are not independent, so the variance is that between chunks. With G_c = X_c^T X_c of each of C chunks, G
their sum, and |.|^2 the sum of squares off the diagonal, it is

    shrinkage = (C sum_c |G_c|^2 / |G|^2 - 1) / (C - 1)

This does not need G_c itself: |X^T X| = |X X^T|, which has one row per token.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import call

import numpy as np
from numpy.typing import NDArray

DEFAULT_SHRINKAGE = 0.5  # of a single chunk, whose variance is unknown; higher than that of two chunks
STRIPE = 512  # rows of the matrix that a thread processes at a time

Floats = NDArray[np.float32]


@dataclass(eq=False)
class Covariance:
    """A sum of products of inputs.

    `products` is the sum of X^T X, float32 (n, n); only its upper triangle is valid. `chunk_squares` is the sum over
    chunks of |X_c^T X_c|^2 off the diagonal.
    """

    products: Floats
    chunk_squares: float = 0.0
    chunks: int = 0

    @classmethod
    def empty(cls, n: int) -> "Covariance":
        """Return the covariance of n inputs before the first chunk."""
        return cls(np.zeros((n, n), np.float32))

    def add(self, x: Floats, threads: int = 1) -> None:
        """Add the inputs of a chunk, float32 (tokens, n).

        The result is bit-identical for any number of threads if BLAS itself uses one thread.
        """
        stripes = [partial(self._add_stripe, x, first) for first in self._stripes()]
        run_parallel([partial(self._add_squares, x), *stripes], threads)
        self.chunks += 1

    def _add_squares(self, x: Floats) -> None:
        self.chunk_squares += squares_off_diagonal(x)

    def _add_stripe(self, x: Floats, first: int) -> None:
        rows = slice(first, first + STRIPE)
        self.products[rows, first:] += x[:, rows].T @ x[:, first:]

    def __add__(self, other: "Covariance") -> "Covariance":
        return Covariance(
            self.products + other.products, self.chunk_squares + other.chunk_squares, self.chunks + other.chunks
        )

    @property
    def shrinkage(self) -> float:
        """The fraction of the off-diagonal elements that is noise, from 0 to 1."""
        if self.chunks < 2:
            return DEFAULT_SHRINKAGE
        squares = float(np.float32(self.chunk_squares))  # the precision of imatrix files
        half = sum(squares_above(self.products[first : first + STRIPE, first:]) for first in self._stripes())
        if not half:
            return 1.0
        return float(np.clip((self.chunks * squares / (2 * half) - 1) / (self.chunks - 1), 0.0, 1.0))

    def _stripes(self) -> range:
        return range(0, len(self.products), STRIPE)


def squares_off_diagonal(x: Floats) -> float:
    """Return |X^T X|^2 off the diagonal, computed in float64 because the diagonal may dominate."""
    exact = x.astype(np.float64)
    gram = exact @ exact.T
    return max(0.0, float(np.square(gram).sum() - np.square(np.square(exact).sum(axis=0)).sum()))


def squares_above(stripe: Floats) -> float:
    """Return the sum of squares above the diagonal, which begins in the upper left corner of the stripe."""
    corner, rest = np.triu(stripe[:, : len(stripe)], 1), stripe[:, len(stripe) :]
    return float(np.square(corner, dtype=np.float64).sum() + np.square(rest, dtype=np.float64).sum())


def run_parallel(tasks: Iterable[Callable[[], None]], threads: int) -> None:
    """Run tasks that spend their time in compiled code on a thread pool."""
    with ThreadPoolExecutor(threads) as pool:
        deque(pool.map(call, tasks), maxlen=0)
