"""Weights into blocks, each error made up for by the columns behind it: the face of the kernel for Python.

    encoder = FeedbackEncoder(type_number, triangle, cache_root)
    encoder.rows(x, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

What counts is not the error of a weight but that of its products with the inputs that the model really sees. Where
these go together, the error in one column can be made up for by others. With H = X^T X of the inputs and U the upper
triangle for which U^T U = H^-1, column i is rounded, and its error e over U[i][i] is taken off every column j behind
it, U[i][j] times; 1 / U[i][i]^2 is what an error in column i then costs (GPTQ; Frantar et al., 2022). A block gets its
scales from the search in `quant.encoders.encode` when its columns are reached, then its codes one after the other.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quant import FORMATS
from quant.encoders.encode import SCRATCH_BYTES, Bytes, Encoder, Floats, is_plain, require
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress, addresses
from quant.jit.record import HEADER_WORDS, RECORD_WORDS, RUN

# Formats whose weight is scale * (code - zero) + min, so that there is a nearest code.
UNIFORM = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"))
LANES = 16  # rows that the kernel rounds side by side
STRETCH = 256  # columns that errors are passed on to at once
# With these, errors on a text of another kind than that of the covariance came out smaller, too: see triangle_of.
TRUST, DAMPING = 0.6, 0.01
PARAMETERS = ("x", "x_stride", "u", "u_stride", "y", "row_bytes", "rows", "errors")


def takes_feedback(type_number: int) -> bool:
    """Whether rows can be encoded so into this type."""
    return TYPES[type_number].name in UNIFORM


def feedback_kernel(type_number: int) -> Kernel:
    """The kernel that a FeedbackEncoder has compiled."""
    constants = (("room", FORMATS[type_number].room),)
    return Kernel("quant.encoders.feedback_rows", "feedback", PARAMETERS, constants=constants)


class FeedbackEncoder:
    """Rows of weights into one tensor type, for inputs that are known; several threads may use it at once."""

    def __init__(
        self, type_number: int, triangle: Floats, cache_root: Path | None, progress: Progress | None = None
    ) -> None:
        """`triangle`: U as above, float32 (n, n), row after row. Has kernels compiled, unless the cache has them."""
        self._search = Encoder(type_number, "max", cache_root, progress)
        found, self.warnings = addresses([feedback_kernel(type_number)], cache_root, progress)
        self._kernel = RUN(found[feedback_kernel(type_number)])
        self._width, self._triangle = TYPES[type_number].elements, triangle
        self._costs = (1 / np.square(triangle.diagonal())).astype(np.float32)

    def rows(self, x: Floats, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes). Raises ValueError when a shape or a layout is not that."""
        count, n = x.shape
        require(n % self._width == 0, f"rows of {n} weights are no whole blocks of {self._width}")
        require(is_plain(self._triangle, np.float32, (n, n)), f"the triangle is not float32, ({n}, {n})")
        size = self._search.row_bytes(n)
        require(is_plain(out, np.uint8, (count, size)), f"out is not uint8, ({count}, {size})")
        rest = x.copy()
        for first in range(0, n, STRETCH):
            end = min(first + STRETCH, n)
            errors = np.concatenate([*self._encode_stretch(rest, first, end, out)], axis=1)
            rest[:, end:] -= errors @ self._triangle[first:end, end:]

    def _encode_stretch(self, x: Floats, first: int, end: int, out: Bytes) -> Iterator[Floats]:
        """Encode some blocks of every row; the errors of each, which the blocks behind it here have been told of."""
        for here in range(first, end, self._width):
            behind = here + self._width
            errors = self._encode_columns(x, here, out)
            x[:, behind:end] -= errors @ self._triangle[here:behind, behind:end]
            yield errors

    def _encode_columns(self, x: Floats, first: int, out: Bytes) -> Floats:
        """Encode the block of every row that begins at column `first`; the errors to pass on, (rows, width)."""
        columns, size = slice(first, first + self._width), self._search.row_bytes(self._width)
        block = np.empty((len(x), size), np.uint8)
        mine = np.ascontiguousarray(x[:, columns])
        # Blocks know nothing of each other, and the search likes many of them in a row.
        self._search.rows(mine.reshape(1, -1), np.tile(self._costs[columns], len(x)), block.reshape(1, -1))
        errors = np.empty((-(-len(x) // LANES), self._width, LANES), np.float32)
        self._run(mine, self._triangle[columns, columns], block, errors)
        place = first // self._width * size
        out[:, place : place + size] = block
        return np.ascontiguousarray(errors.transpose(0, 2, 1).reshape(-1, self._width)[: len(x)])

    def _run(self, x: Floats, u: NDArray[np.float32], y: Bytes, errors: Floats) -> None:
        record, scratch = np.zeros(RECORD_WORDS, np.int64), np.empty(SCRATCH_BYTES, np.uint8)
        arguments = (
            *(x.ctypes.data, x.strides[0], u.ctypes.data, u.strides[0]),
            *(y.ctypes.data, y.strides[0], len(x), errors.ctypes.data),
        )
        record[HEADER_WORDS : HEADER_WORDS + len(PARAMETERS)] = arguments
        self._kernel(record.ctypes.data, 0, 1, scratch.ctypes.data)


def triangle_of(covariance: NDArray[np.floating], trust: float = TRUST, damping: float = DAMPING) -> Floats:
    """U, upper triangular, with U^T U = H^-1, float32 (n, n), for H = `covariance`: sums of products of inputs.

    Of what is not on the diagonal only a share, `trust`, is believed, because another text has other products; and
    `damping` times the mean of the diagonal is added to it, so that H has an inverse. A column that was never used
    counts as one that was. Raises numpy.linalg.LinAlgError where H is no covariance.

    With H turned by 180 degrees, its lower Cholesky factor is, turned back, an upper R with R R^T = H; so U is R^-1.
    """
    diagonal = covariance.diagonal().astype(np.float64)
    mean = diagonal.mean() or 1.0
    diagonal[diagonal == 0] = mean
    h = trust * covariance.astype(np.float64)
    np.fill_diagonal(h, diagonal + damping * mean)
    if not np.isfinite(h).all():
        raise np.linalg.LinAlgError("a value is not finite")
    r = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
    return np.ascontiguousarray(inverse_of_triangle(np.asarray(r, np.float64)), dtype=np.float32)


def inverse_of_triangle(r: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of an upper triangular matrix, from those of its quarters."""
    n = len(r)
    if n <= 64:
        small: NDArray[np.float64] = np.linalg.inv(r).astype(np.float64, copy=False)
        return small
    half = n // 2
    result = np.zeros_like(r)
    first, last = inverse_of_triangle(r[:half, :half]), inverse_of_triangle(r[half:, half:])
    result[:half, :half], result[half:, half:] = first, last
    result[:half, half:] = -first @ r[:half, half:] @ last
    return result
