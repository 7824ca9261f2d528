"""The principal components of a matrix's inputs, computed incrementally while the model runs.

    components = PrincipalComponents.empty(n)
    components.add(x)           # float32 (tokens, n): the inputs of the matrix for some tokens
    components.rows             # float32 (RANK, n), F: F^T F approximates X^T X of all inputs that were added

The full covariance would have n^2 numbers. Instead, a singular value decomposition of F and some new rows, truncated to
the largest RANK values, gives the new F (Brand, 2006). To save time, new tokens are added up in groups with random
signs: common components remain, the others cancel on average, and there are a quarter as many rows to decompose. With
8,192 tokens of Qwen2.5-Coder, this F is as useful to `quant.encoders.low_rank` as the exact one, to 1 %.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

RANK = 32  # components; twice as many reduced the error by another 3 % and made encoding a fifth slower
TOKENS_PER_SUM = 4  # tokens that are added up with random signs
SUMS_PER_UPDATE = 128  # sums that are decomposed at once
OVERSAMPLING, POWER_ITERATIONS = 16, 2  # of the randomized subspace iteration
SEED = 0x10CA1
SIGNS = np.array([-1, 1], np.float32)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(eq=False)
class PrincipalComponents:
    """An incremental estimate of principal components.

    `components` is F without the rows in `_pending`: sums, and tokens that are too few for a sum.
    """

    components: Floats
    _pending: list[Floats] = field(default_factory=list)
    # The annotation is a string because numpy.random takes 8 ms to import, and reading rows does not need it.
    _signs: "np.random.Generator" = field(default_factory=lambda: np.random.default_rng(SEED))

    @classmethod
    def empty(cls, n: int) -> "PrincipalComponents":
        """Return the components of n inputs before the first token."""
        return cls(np.zeros((0, n), np.float32))

    def add(self, x: Floats) -> None:
        """Add the inputs of some tokens, float32 (tokens, n)."""
        signed = x * self._signs.choice(SIGNS, (len(x), 1))
        whole = len(x) - len(x) % TOKENS_PER_SUM
        self._pending += [signed[:whole].reshape(-1, TOKENS_PER_SUM, x.shape[1]).sum(axis=1), signed[whole:]]
        if sum(map(len, self._pending)) >= SUMS_PER_UPDATE:
            self._update()

    def __add__(self, other: "PrincipalComponents") -> "PrincipalComponents":
        return PrincipalComponents(principal_rows(np.concatenate([self.rows, other.rows])))

    @property
    def rows(self) -> Floats:
        """F, float32 (rank, n). The rank is at most RANK for components that were computed here."""
        self._update()
        return self.components

    def _update(self) -> None:
        if self._pending:
            self.components = principal_rows(np.concatenate([self.components, *self._pending]))
            self._pending.clear()


def principal_rows(rows: Floats) -> Floats:
    """Return at most RANK rows F for which F^T F approximates R^T R of many rows R best.

    They belong to the largest singular values, computed from the products of the rows with each other.
    """
    scale = np.abs(rows).max(initial=0) or np.float32(1)  # prevents overflow of products
    level = rows / scale
    values, vectors = largest_eigenvalues((level @ level.T).astype(np.float64))
    return np.ascontiguousarray(vectors[:, values > 0].T.astype(np.float32) @ rows)


def largest_eigenvalues(square: Doubles) -> tuple[Doubles, Doubles]:
    """Return the RANK largest eigenvalues of a positive semidefinite matrix, and their eigenvectors as columns.

    Uses randomized subspace iteration (Halko, Martinsson and Tropp, 2011). The result is exact if the matrix has no
    more columns than the subspace.
    """
    basis = np.random.default_rng(SEED).choice(SIGNS, (len(square), RANK + OVERSAMPLING))
    for _ in range(POWER_ITERATIONS):
        basis = np.linalg.qr(square @ basis).Q
    values, vectors = np.linalg.eigh(basis.T @ square @ basis)
    return values[::-1][:RANK], basis @ vectors[:, ::-1][:, :RANK]
