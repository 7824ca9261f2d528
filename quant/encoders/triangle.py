"""How errors in columns hang together: H = R R^T of a matrix's inputs, with R an upper triangle.

    triangle = triangle_of(covariance)      # for quant.encoders.feedback and quant.encoders.joint

Of what is not on the diagonal of H, that share is believed which is no chance, and of that what other texts share.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quant.encoders.covariance import STRIPE, Covariance, together

# Of what is not on the diagonal, and no chance: another kind of text has other products. Of those tried with SmolLM2
# the one of least KL divergence on such a text; to believe all is worse than to pass no errors on, even on the same.
TRUST = 0.6
DAMPING = 0.01  # of the mean of the diagonal, which is added to it, so that H has a triangle
CORNER = 256  # columns that are factored at once: a superblock

Floats = NDArray[np.float32]


class Triangle(NamedTuple):
    """Of n columns, with A_ij = R_ij / R_jj: `shares`, A, float32 (n, n), 1 on the diagonal; `costs`, R_jj^2, (n,);
    `squares`, those of CORNER columns each on the diagonal of H, and a smaller last one, of which only what is on or
    above the diagonal counts. In the same squares A is 0 below the diagonal; farther below, it does not count."""

    shares: Floats
    costs: Floats
    squares: list[Floats]


def triangle_of(
    covariance: Covariance, *, trust: float = TRUST, damping: float = DAMPING, threads: int = 1
) -> Triangle:
    """The triangle for sums of products of inputs, in their place: they are gone afterwards.

    Of what is not on the diagonal, that share is believed which is not to be doubted, `trust` times; `damping` times
    the mean of the diagonal is added to it. A column that was never used counts as one that was. Raises
    numpy.linalg.LinAlgError where the products are no covariance.
    """
    h, belief = covariance.products, trust * (1 - covariance.doubt)
    diagonal = h.diagonal().astype(np.float64)
    mean = diagonal.mean() or 1.0
    diagonal[diagonal == 0] = mean
    h *= np.float32(belief)
    np.fill_diagonal(h, diagonal + damping * mean)
    if not (np.isfinite(h.min()) and np.isfinite(h.max())):
        raise np.linalg.LinAlgError("a value is not finite")
    squares = [h[first : first + CORNER, first : first + CORNER].copy() for first in range(0, len(h), CORNER)]
    factor(h, threads)
    costs = h.diagonal().copy()
    h /= costs
    return Triangle(h, np.square(costs), squares)


def factor(h: Floats, threads: int = 1) -> None:
    """Put R, upper triangular with R R^T = H, in the place of what is on and above the diagonal of H, float32 (n, n).

    From the last columns to the first: those of a corner of H, then what is above it, which is taken off the rest. The
    same bits for any number of threads, where BLAS has one for each of them.
    """
    for first in reversed(range(0, len(h), CORNER)):
        corner = corner_of(h[first : first + CORNER, first : first + CORNER])
        h[first : first + CORNER, first : first + CORNER] = corner
        inverse = np.linalg.inv(corner).T.astype(np.float32)
        above = np.ascontiguousarray(h[:first, first : first + CORNER] @ inverse)
        h[:first, first : first + CORNER] = above
        together([partial(take_off, h, above, at) for at in range(0, first, STRIPE)], threads)


def take_off(h: Floats, above: Floats, first: int) -> None:
    """A stripe of H -= above above^T, from the diagonal on."""
    end = min(first + STRIPE, len(above))
    h[first:end, first : len(above)] -= above[first:end] @ above[first:].T


def corner_of(h: Floats) -> NDArray[np.float64]:
    """R of a small H: turned by 180 degrees, the lower Cholesky factor of H that was turned so, too."""
    upper = np.triu(h).astype(np.float64)
    whole = upper + np.triu(upper, 1).T
    return np.asarray(np.linalg.cholesky(whole[::-1, ::-1])[::-1, ::-1], np.float64)
