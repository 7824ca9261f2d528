"""The few directions in which the inputs of a matrix have most of their power, found while they pass.

    directions = Directions.empty(n)
    directions.add(x)           # float32 (tokens, n): what the matrix was multiplied with, some tokens at a time
    directions.rows             # float32 (RANK, n), F: F^T F is nearly X^T X of all that was added

All products of pairs would be n^2 numbers; a singular value decomposition of what is known so far and some new rows,
cut off behind the largest RANK values, is F again (Brand, 2006). Of new tokens a few at a time are added up with random
signs: what they have in common stays, what they do not cancels out on the average, and there is a quarter to decompose.
With 8,192 tokens of Qwen2.5-Coder the F found so is worth as much to `quant.encoders.low_rank` as the exact one, to
1 %. Knows numbers, no model and no text.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

RANK = 32  # directions; twice as many took another 3 % off the error, and encoding a fifth longer
TOGETHER = 4  # tokens that are added up
STRETCH = 128  # of these sums are decomposed at once
SPARE, ROUNDS = 16, 2  # for the largest eigenvalues: sums beside RANK, and how often they are multiplied
SEED = 0x10CA1
SIGNS = np.array([-1, 1], np.float32)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(eq=False)
class Directions:
    """`found`: F of all but the rows that wait: sums, and tokens that are too few for one."""

    found: Floats
    _waiting: list[Floats] = field(default_factory=list)
    # As text, because numpy's random numbers take 8 ms to import, and whoever reads rows needs none.
    _signs: "np.random.Generator" = field(default_factory=lambda: np.random.default_rng(SEED))

    @classmethod
    def empty(cls, n: int) -> "Directions":
        """Of n inputs that were not seen yet."""
        return cls(np.zeros((0, n), np.float32))

    def add(self, x: Floats) -> None:
        """Add rows of inputs, (tokens, n)."""
        signed = x * self._signs.choice(SIGNS, (len(x), 1))
        whole = len(x) - len(x) % TOGETHER
        self._waiting += [signed[:whole].reshape(-1, TOGETHER, x.shape[1]).sum(axis=1), signed[whole:]]
        if sum(map(len, self._waiting)) >= STRETCH:
            self._take_in()

    def __add__(self, other: "Directions") -> "Directions":
        return Directions(main_rows(np.concatenate([self.rows, other.rows])))

    @property
    def rows(self) -> Floats:
        """F: as many rows as there are directions, at most RANK where they were found here."""
        self._take_in()
        return self.found

    def _take_in(self) -> None:
        if self._waiting:
            self.found = main_rows(np.concatenate([self.found, *self._waiting]))
            self._waiting.clear()


def main_rows(rows: Floats) -> Floats:
    """At most RANK rows F, with F^T F as near as can be to R^T R of many rows R: those of the largest singular values,
    by the products of the rows with each other."""
    scale = np.abs(rows).max(initial=0) or np.float32(1)  # products of large numbers would be too large
    level = rows / scale
    values, vectors = largest_eigenvalues((level @ level.T).astype(np.float64))
    return np.ascontiguousarray(vectors[:, values > 0].T.astype(np.float32) @ rows)


def largest_eigenvalues(square: Doubles) -> tuple[Doubles, Doubles]:
    """The RANK largest eigenvalues of a symmetric matrix that has no negative ones, and their vectors as columns.

    Sums of columns with random signs, multiplied with the matrix again, span nearly what the vectors do (Halko,
    Martinsson and Tropp, 2011). That is exact where there are no more columns than sums.
    """
    basis = np.random.default_rng(SEED).choice(SIGNS, (len(square), RANK + SPARE))
    for _ in range(ROUNDS):
        basis = np.linalg.qr(square @ basis).Q
    values, vectors = np.linalg.eigh(basis.T @ square @ basis)
    return values[::-1][:RANK], basis @ vectors[:, ::-1][:, :RANK]
