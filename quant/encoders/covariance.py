"""Which inputs of a matrix go together: X^T X, summed up over chunks of text, and how far to believe it.

    covariance = Covariance.empty(n)
    covariance.add(x)           # float32 (tokens, n): what the matrix was multiplied with during a chunk
    covariance.doubt            # 0: more text of the kind would have the same products; 1: quite others

Of what n inputs share, a text of a few thousand tokens shows much that is chance. The error of an estimate is least
when what is off its diagonal is made smaller by the share of its variance in its square (Ledoit & Wolf, 2004). Tokens
of one chunk are not independent, so the variance is that between chunks: with G_c = X_c^T X_c of each of C chunks, G
their sum, and |.|^2 the sum of squares off the diagonal, it is

    doubt = (C sum_c |G_c|^2 / |G|^2 - 1) / (C - 1)

No G_c is needed for that: |X^T X| = |X X^T|, which has a row for each token. Knows numbers, no model and no text.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import call

import numpy as np
from numpy.typing import NDArray

DOUBT_OF_ONE = 0.5  # of a single chunk, which has nothing to be compared with: more than two chunks of a text have
STRIPE = 512  # rows of a square that a thread works on at a time

Floats = NDArray[np.float32]


@dataclass(eq=False)
class Covariance:
    """`products`: the sum of X^T X, float32 (n, n), of which only what is on and above the diagonal counts; `squares`:
    the sum over chunks of |X_c^T X_c|^2 off the diagonal."""

    products: Floats
    squares: float = 0.0
    chunks: int = 0

    @classmethod
    def empty(cls, n: int) -> "Covariance":
        """Of n inputs that were not seen yet."""
        return cls(np.zeros((n, n), np.float32))

    def add(self, x: Floats, threads: int = 1) -> None:
        """Add a chunk, (tokens, n). The same bits for any number of threads, where BLAS has one for each of them."""
        stripes = [partial(self._add_stripe, x, first) for first in self._stripes()]
        together([partial(self._add_squares, x), *stripes], threads)
        self.chunks += 1

    def _add_squares(self, x: Floats) -> None:
        self.squares += squares_off_diagonal(x)

    def _add_stripe(self, x: Floats, first: int) -> None:
        rows = slice(first, first + STRIPE)
        self.products[rows, first:] += x[:, rows].T @ x[:, first:]

    def __add__(self, other: "Covariance") -> "Covariance":
        return Covariance(self.products + other.products, self.squares + other.squares, self.chunks + other.chunks)

    @property
    def doubt(self) -> float:
        """How much of what is off the diagonal is chance, from 0 to 1."""
        if self.chunks < 2:
            return DOUBT_OF_ONE
        squares = float(np.float32(self.squares))  # as files keep it
        half = sum(squares_above(self.products[first : first + STRIPE, first:]) for first in self._stripes())
        if not half:
            return 1.0
        return float(np.clip((self.chunks * squares / (2 * half) - 1) / (self.chunks - 1), 0.0, 1.0))

    def _stripes(self) -> range:
        return range(0, len(self.products), STRIPE)


def squares_off_diagonal(x: Floats) -> float:
    """|X^T X|^2 off the diagonal: in float64, because what is on it may be nearly all."""
    exact = x.astype(np.float64)
    gram = exact @ exact.T
    return max(0.0, float(np.square(gram).sum() - np.square(np.square(exact).sum(axis=0)).sum()))


def squares_above(stripe: Floats) -> float:
    """The sum of squares above the diagonal, which begins in the upper left corner."""
    corner, rest = np.triu(stripe[:, : len(stripe)], 1), stripe[:, len(stripe) :]
    return float(np.square(corner, dtype=np.float64).sum() + np.square(rest, dtype=np.float64).sum())


def together(tasks: Iterable[Callable[[], None]], threads: int) -> None:
    """Have tasks done, at most so many at a time, that spend their time in compiled code."""
    with ThreadPoolExecutor(threads) as pool:
        deque(pool.map(call, tasks), maxlen=0)
