"""Weights into blocks, each error made up for by the columns behind it: the face of the kernel for Python.

    encoder = FeedbackEncoder(type_number, triangle_of(covariance), cache_root)
    encoder.rows(x, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

What counts is not the error of a weight but that of its products with the inputs that the model really sees. Where
these go together, the error in one column can be made up for by others (GPTQ; Frantar et al., 2022). It is done in the
form that needs no inverse (LDLQ; Chee et al., 2023, who prove that it is the same). With H = X^T X of the inputs and
the upper triangle R for which R R^T = H, errors e of a row's weights cost

    e H e^T = sum_j R_jj^2 (e_j + sum_{i<j} e_i A_ij)^2,    A_ij = R_ij / R_jj

so column j is rounded to what is nearest to its weight plus sum_{i<j} e_i A_ij, and R_jj^2 is what an error then costs.
A block gets its scales from the search in `quant.encoders.encode` when its columns are reached, then its codes one
after the other.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quant import FORMATS
from quant.encoders.covariance import STRIPE, Covariance, together
from quant.encoders.encode import Bytes, Encoder, Floats, is_plain, require, scratch_room
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress, addresses
from quant.jit.record import HEADER_WORDS, RECORD_WORDS, RUN

# Formats that have a code for each column, so that there is a nearest one.
SCALAR = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"))
LANES = 16  # rows that the kernel rounds side by side
STRETCH = 256  # columns that errors are passed on to at once
ROWS = 256  # a call with fewer is slower: for each, all of the triangle is read
# Of what is not on the diagonal, and no chance: another kind of text has other products. Of those tried with SmolLM2
# the one of least KL divergence on such a text; to believe all is worse than to pass no errors on, even on the same.
TRUST = 0.6
DAMPING = 0.01  # of the mean of the diagonal, which is added to it, so that H has a triangle
CORNER = 256  # columns that are factored at once
PARAMETERS = ("x", "x_stride", "w", "w_stride", "a", "a_stride", "y", "row_bytes", "rows", "errors")


def rounds_columns(type_number: int) -> bool:
    """Whether rows can be encoded so into this type; into others see `quant.encoders.joint`."""
    return TYPES[type_number].name in SCALAR


def feedback_kernel(type_number: int) -> Kernel:
    """The kernel that a FeedbackEncoder has compiled."""
    constants = (("room", FORMATS[type_number].room),)
    return Kernel("quant.encoders.feedback_rows", "feedback", PARAMETERS, constants=constants)


class Triangle(NamedTuple):
    """`shares`: A as above, float32 (n, n), of which only what is above the diagonal counts; `costs`: R_jj^2, (n,)."""

    shares: Floats
    costs: Floats


class FeedbackEncoder:
    """Rows of weights into one tensor type, for inputs that are known; several threads may use it at once."""

    def __init__(
        self, type_number: int, triangle: Triangle, cache_root: Path | None, progress: Progress | None = None
    ) -> None:
        """Has kernels compiled, unless the cache has them."""
        self._search = Encoder(type_number, "normal", cache_root, progress)
        found, self.warnings = addresses([feedback_kernel(type_number)], cache_root, progress)
        self._kernel = RUN(found[feedback_kernel(type_number)])
        self._width, self._triangle = TYPES[type_number].elements, triangle

    def rows(self, x: Floats, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes). Raises ValueError when a shape or a layout is not that."""
        (count, n), shares = x.shape, self._triangle.shares
        require(n % self._width == 0, f"rows of {n} weights are no whole blocks of {self._width}")
        require(is_plain(shares, np.float32, (n, n)), f"the triangle is not float32, ({n}, {n})")
        size = self._search.row_bytes(n)
        require(is_plain(out, np.uint8, (count, size)), f"out is not uint8, ({count}, {size})")
        wanted = x.copy()
        for first in range(0, n, STRETCH):
            end = min(first + STRETCH, n)
            errors = np.concatenate([*self._encode_stretch(x, wanted, first, end, out)], axis=1)
            wanted[:, end:] += errors @ shares[first:end, end:]

    def _encode_stretch(self, x: Floats, wanted: Floats, first: int, end: int, out: Bytes) -> Iterator[Floats]:
        """Encode some blocks of every row; the errors of each, which the blocks behind it here have been told of."""
        for here in range(first, end, self._width):
            behind = here + self._width
            errors = self._encode_columns(x, wanted, here, out)
            wanted[:, behind:end] += errors @ self._triangle.shares[here:behind, behind:end]
            yield errors

    def _encode_columns(self, x: Floats, wanted: Floats, first: int, out: Bytes) -> Floats:
        """Encode the block of every row that begins at column `first`; the errors of the weights, (rows, width)."""
        columns, size = slice(first, first + self._width), self._search.row_bytes(self._width)
        block = np.empty((len(x), size), np.uint8)
        mine = np.ascontiguousarray(wanted[:, columns])
        # Blocks know nothing of each other, and the search likes many of them in a row.
        costs = np.tile(self._triangle.costs[columns], len(x))
        self._search.rows(mine.reshape(1, -1), costs, block.reshape(1, -1))
        errors = np.empty((-(-len(x) // LANES), self._width, LANES), np.float32)
        self._run(mine, x[:, columns], self._triangle.shares[columns, columns], block, errors)
        place = first // self._width * size
        out[:, place : place + size] = block
        return np.ascontiguousarray(errors.transpose(0, 2, 1).reshape(-1, self._width)[: len(x)])

    def _run(self, x: Floats, w: Floats, a: Floats, y: Bytes, errors: Floats) -> None:
        record, scratch = np.zeros(RECORD_WORDS, np.int64), scratch_room()
        arguments = (
            *(x.ctypes.data, x.strides[0], w.ctypes.data, w.strides[0], a.ctypes.data, a.strides[0]),
            *(y.ctypes.data, y.strides[0], len(x), errors.ctypes.data),
        )
        record[HEADER_WORDS : HEADER_WORDS + len(PARAMETERS)] = arguments
        self._kernel(record.ctypes.data, 0, 1, scratch.ctypes.data)


# --- the triangle ---


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
    factor(h, threads)
    costs = h.diagonal().copy()
    h /= costs
    return Triangle(h, np.square(costs))


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
