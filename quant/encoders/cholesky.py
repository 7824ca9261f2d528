"""The triangular factor of a matrix's input covariance: H = R R^T with R upper triangular.

    factor = factorize(covariance)      # for quant.encoders.feedback and quant.encoders.block_feedback

The off-diagonal elements of H are scaled down by the estimated sampling noise (shrinkage) and by a constant for the
difference between texts.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quant.encoders.covariance import STRIPE, Covariance, run_parallel

# The factor for off-diagonal products after shrinkage, because another kind of text has other products. It had the
# least KL divergence with SmolLM2 on such a text. A factor of 1 is worse than no error feedback, even on the same text.
TRUST = 0.6
DAMPING = 0.01  # times the mean of the diagonal, added to the diagonal so that H is positive definite
BLOCK_COLUMNS = 256  # columns that are factored at once: a superblock

Floats = NDArray[np.float32]


class CholeskyFactor(NamedTuple):
    """The factor R of the covariance of n columns, normalized to A_ij = R_ij / R_jj.

    `unit_upper` is A, float32 (n, n), with 1 on the diagonal; `costs` is R_jj^2, float32 (n,). `diagonal_blocks` are
    the square blocks of BLOCK_COLUMNS columns on the diagonal of H; the last one may be smaller. Only the upper
    triangle of each is valid. Within these blocks, A is 0 below the diagonal; the values of A further below are
    undefined.
    """

    unit_upper: Floats
    costs: Floats
    diagonal_blocks: list[Floats]

    def scale_inputs(self, scales: Floats) -> None:
        """Make this the factor of inputs that are multiplied by `scales`, (n,), in place: R becomes diag(scales) R."""
        self.unit_upper[:] *= scales[:, None]
        self.unit_upper[:] /= scales
        self.costs[:] *= np.square(scales)
        for number, square in enumerate(self.diagonal_blocks):
            part = scales[number * BLOCK_COLUMNS : (number + 1) * BLOCK_COLUMNS]
            square *= part[:, None]
            square *= part

    def cost(self, errors: Floats) -> float:
        """Return the sum of e H e^T over the rows e of `errors`, (rows, n)."""
        total = 0.0
        for first in range(0, len(self.costs), BLOCK_COLUMNS):
            end = min(first + BLOCK_COLUMNS, len(self.costs))
            carried = errors[:, :end] @ self.unit_upper[:end, first:end]
            total += float((np.square(carried, dtype=np.float64) @ self.costs[first:end]).sum())
        return total


def factorize(
    covariance: Covariance, *, trust: float = TRUST, damping: float = DAMPING, threads: int = 1
) -> CholeskyFactor:
    """Factorize the sum of products of inputs. The factor overwrites `covariance.products`.

    Off-diagonal products are scaled by trust * (1 - shrinkage), and `damping` times the mean of the diagonal is added
    to the diagonal. A column that was never used gets the mean. Raises numpy.linalg.LinAlgError if the products are not
    positive definite or not finite.
    """
    h, factor = covariance.products, trust * (1 - covariance.shrinkage)
    diagonal = h.diagonal().astype(np.float64)
    mean = diagonal.mean() or 1.0
    diagonal[diagonal == 0] = mean
    h *= np.float32(factor)
    np.fill_diagonal(h, diagonal + damping * mean)
    if not (np.isfinite(h.min()) and np.isfinite(h.max())):
        raise np.linalg.LinAlgError("a value is not finite")
    squares = [
        h[first : first + BLOCK_COLUMNS, first : first + BLOCK_COLUMNS].copy()
        for first in range(0, len(h), BLOCK_COLUMNS)
    ]
    cholesky_upper(h, threads)
    costs = h.diagonal().copy()
    h /= costs
    return CholeskyFactor(h, np.square(costs), squares)


def cholesky_upper(h: Floats, threads: int = 1) -> None:
    """Overwrite the upper triangle of H, float32 (n, n), with the upper triangular R for which R R^T = H.

    Blocks are processed from the last columns to the first: factor the diagonal block, solve for the columns above it,
    and subtract their outer product from the rest. The result is bit-identical for any number of threads if BLAS itself
    uses one thread.
    """
    for first in reversed(range(0, len(h), BLOCK_COLUMNS)):
        block = factor_diagonal_block(h[first : first + BLOCK_COLUMNS, first : first + BLOCK_COLUMNS])
        h[first : first + BLOCK_COLUMNS, first : first + BLOCK_COLUMNS] = block
        inverse = np.linalg.inv(block).T.astype(np.float32)
        above = np.ascontiguousarray(h[:first, first : first + BLOCK_COLUMNS] @ inverse)
        h[:first, first : first + BLOCK_COLUMNS] = above
        run_parallel([partial(subtract_outer_product, h, above, at) for at in range(0, first, STRIPE)], threads)


def subtract_outer_product(h: Floats, above: Floats, first: int) -> None:
    """Subtract above above^T from the upper triangle of one stripe of rows of H."""
    end = min(first + STRIPE, len(above))
    h[first:end, first : len(above)] -= above[first:end] @ above[first:].T


def factor_diagonal_block(h: Floats) -> NDArray[np.float64]:
    """Return R of a small H: the lower Cholesky factor of H rotated by 180 degrees, rotated back."""
    upper = np.triu(h).astype(np.float64)
    symmetric = upper + np.triu(upper, 1).T
    return np.asarray(np.linalg.cholesky(symmetric[::-1, ::-1])[::-1, ::-1], np.float64)
