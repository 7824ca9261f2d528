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
after the other. The first columns do not know yet what will be left of the last, so all are rounded again, with the
scales that they have (coordinate descent; Behdin et al., 2023): what errors cost is least where column j is nearest to

    its weight plus sum_{i!=j} e_i H_ij / H_jj,    e H = (e A) diag(R_jj^2) A^T

which the errors of columns before it, as they are now, and of those behind it, as they were, decide.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quant import FORMATS
from quant.encoders.encode import Bytes, Encoder, Floats, is_plain, require, scratch_room
from quant.encoders.triangle import CORNER, Triangle
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress, addresses
from quant.jit.record import RUN, call

# Formats that have a code for each column, so that there is a nearest one.
SCALAR = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"))
LANES = 16  # rows that the kernel rounds side by side
ROWS = 512  # a call with fewer is slower: for each, all of the triangle is read
REVISIONS = 2  # of all codes; each takes twice the time of the first pass, and takes less off the error
PARAMETERS = ("x", "x_stride", "w", "w_stride", "a", "a_stride", "y", "row_bytes", "rows", "errors")


def rounds_columns(type_number: int) -> bool:
    """Whether rows can be encoded so into this type; into others see `quant.encoders.joint`."""
    return TYPES[type_number].name in SCALAR


def feedback_kernel(type_number: int) -> Kernel:
    """The kernel that a FeedbackEncoder has compiled."""
    constants = (("room", FORMATS[type_number].room),)
    return Kernel("quant.encoders.feedback_rows", "feedback", PARAMETERS, constants=constants)


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
        rounding = _Rounding(x, out, np.zeros_like(x), np.zeros_like(x))
        corners = [slice(first, min(first + CORNER, n)) for first in range(0, n, CORNER)]
        with np.errstate(over="ignore", invalid="ignore"):
            for corner in corners:
                self._encode(rounding, corner)
            for _ in range(REVISIONS):
                for corner, square in zip(corners, self._triangle.squares, strict=True):
                    self._revise(rounding, corner, square)

    def _encode(self, rows: "_Rounding", corner: slice) -> None:
        """Find the scales and codes of some blocks of every row."""
        shares, end = self._triangle.shares, corner.stop
        for block in self._blocks(corner):
            wanted = rows.wanted(block, rows.owed[:, block])
            # Blocks know nothing of each other, and the search likes many of them in a row.
            costs = np.tile(self._triangle.costs[block], len(wanted))
            found = np.empty((len(wanted), self._search.row_bytes(self._width)), np.uint8)
            self._search.rows(wanted.reshape(1, -1), costs, found.reshape(1, -1))
            rows.out[:, self._bytes(block)] = found
            errors = self._round(rows, block, wanted, shares[block, block])
            rows.owed[:, block.start : end] += errors @ shares[block, block.start : end]
        rows.owed[:, end:] += rows.errors[:, corner] @ shares[corner, end:]

    def _revise(self, rows: "_Rounding", corner: slice, square: Floats) -> None:
        """Find the codes of some blocks again. `square` is that of their columns in H."""
        here = corner.start
        shares, costs = self._triangle.shares[corner, here:], self._triangle.costs[here:]
        products, before = (rows.owed[:, here:] * costs) @ shares.T, rows.errors[:, corner].copy()  # e H, and e
        for block in self._blocks(corner):
            mine, behind = slice(block.start - here, block.stop - here), slice(block.stop - here, None)
            part = square[mine, mine]
            others: Floats = products[:, mine] - before[:, mine] @ np.triu(part)
            errors = self._round(rows, block, rows.wanted(block, others / part.diagonal()), part / part.diagonal())
            products[:, behind] += (errors - before[:, mine]) @ square[mine, behind]
        rows.owed[:, here:] += (rows.errors[:, corner] - before) @ shares

    def _blocks(self, corner: slice) -> Iterator[slice]:
        """The columns of each block."""
        for first in range(corner.start, corner.stop, self._width):
            yield slice(first, first + self._width)

    def _bytes(self, block: slice) -> slice:
        """Where a block is in an encoded row."""
        return slice(*map(self._search.row_bytes, (block.start, block.stop)))

    def _round(self, rows: "_Rounding", block: slice, wanted: Floats, a: Floats) -> Floats:
        """Put codes into the block of every row; the errors of its weights, (rows, width). Column j is rounded to what
        is wanted of it plus the errors of the columns before it, times a[i, j]."""
        x, codes = rows.x[:, block], np.ascontiguousarray(rows.out[:, self._bytes(block)])
        errors = np.empty((-(-len(x) // LANES), self._width, LANES), np.float32)
        arguments = (
            *(wanted.ctypes.data, wanted.strides[0], x.ctypes.data, x.strides[0], a.ctypes.data, a.strides[0]),
            *(codes.ctypes.data, codes.strides[0], len(x), errors.ctypes.data),
        )
        scratch = scratch_room()
        call(self._kernel, arguments, scratch.ctypes.data)
        rows.out[:, self._bytes(block)] = codes
        rows.errors[:, block] = found = errors.transpose(0, 2, 1).reshape(-1, self._width)[: len(x)]
        return found


class _Rounding(NamedTuple):
    """Rows on their way: `x` and `out` as in FeedbackEncoder.rows, the `errors` e of their weights so far, and what is
    `owed` for them, e A; both like x, and 0 in columns that were not reached yet."""

    x: Floats
    out: Bytes
    errors: Floats
    owed: Floats

    def wanted(self, block: slice, more: Floats) -> Floats:
        """A block's weights and what is wanted beyond them; they alone, where errors have become too large."""
        weights = self.x[:, block]
        wanted: Floats = weights + more
        if not np.isfinite(wanted.sum()):
            np.copyto(wanted, weights, where=~np.isfinite(wanted))
        return wanted
