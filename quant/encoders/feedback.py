"""GPTQ: quantize weights with error feedback. The error of each column is compensated by the columns after it.

    encoder = FeedbackEncoder(type_number, factorize(covariance), cache_root)
    encoder.encode(x, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

The objective is not the error of the weights but the error of the layer's output for real inputs. Where inputs are
correlated, the error in one column can be compensated by other columns (GPTQ; Frantar et al., 2022). This module uses
the formulation without a matrix inverse (LDLQ; Chee et al., 2023, who prove its equivalence). With H = X^T X of the
inputs and the upper triangular R for which R R^T = H, errors e of a row's weights cost

    e H e^T = sum_j R_jj^2 (e_j + sum_{i<j} e_i A_ij)^2,    A_ij = R_ij / R_jj

so column j is rounded to the value nearest to its weight plus sum_{i<j} e_i A_ij, and R_jj^2 is the cost of an error in
it. When the algorithm reaches a block, `quant.encoders.encoder` searches its scales, then its codes are rounded one
after the other. The first columns cannot take the errors of later ones into account. So all codes are refined with
fixed scales by coordinate descent (Behdin et al., 2023): the cost is least if column j is nearest to

    its weight plus sum_{i!=j} e_i H_ij / H_jj,    e H = (e A) diag(R_jj^2) A^T

with the new errors of the columns before it and the old errors of the columns after it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quant import FORMATS
from quant.encoders.cholesky import BLOCK_COLUMNS, CholeskyFactor
from quant.encoders.encoder import Bytes, Encoder, Floats, allocate_scratch, has_layout, require
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import KernelFunction, call_kernel
from quant.jit.loader import Progress, load_kernels

# Formats with one code per column (scalar quantization), so that each column has a nearest code.
SCALAR_TYPES = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
)
LANES = 16  # rows that the kernel processes at once
MIN_ROWS = 512  # calls with fewer rows are slower: each call reads the whole factor
DESCENT_SWEEPS = 2  # each takes twice the time of the first pass and reduces the error less
PARAMETERS = ("x", "x_stride", "w", "w_stride", "a", "a_stride", "y", "row_bytes", "rows", "errors")


def is_scalar_type(type_number: int) -> bool:
    """Return whether `FeedbackEncoder` supports this type. See `quant.encoders.block_feedback` for the others."""
    return TYPES[type_number].name in SCALAR_TYPES


def feedback_kernel(type_number: int) -> Kernel:
    """Return the kernel that a `FeedbackEncoder` for this type compiles."""
    constants = (("format_module", FORMATS[type_number].format_module),)
    return Kernel("quant.encoders.feedback_kernel", "feedback", PARAMETERS, constants=constants)


class FeedbackEncoder:
    """A GPTQ encoder of rows of weights into one tensor type. Several threads may use it at the same time."""

    def __init__(
        self, type_number: int, factor: CholeskyFactor, cache_root: Path | None, progress: Progress | None = None
    ) -> None:
        """Compile the kernels, unless the cache has them."""
        self._search = Encoder(type_number, "normal", cache_root, progress)
        addresses, self.warnings = load_kernels([feedback_kernel(type_number)], cache_root, progress)
        self._kernel = KernelFunction(addresses[feedback_kernel(type_number)])
        self._width, self._factor = TYPES[type_number].elements, factor

    def encode(self, x: Floats, out: Bytes) -> None:
        """Encode x, float32 (rows, n), into out, uint8 (rows, row_bytes).

        Raises ValueError if a shape or a layout is wrong.
        """
        (count, n), unit_upper = x.shape, self._factor.unit_upper
        require(n % self._width == 0, f"rows of {n} weights are not whole blocks of {self._width}")
        require(has_layout(unit_upper, np.float32, (n, n)), f"the Cholesky factor is not float32, ({n}, {n})")
        size = self._search.row_bytes(n)
        require(has_layout(out, np.uint8, (count, size)), f"out is not uint8, ({count}, {size})")
        rounding = _RowState(x, out, np.zeros_like(x), np.zeros_like(x))
        column_blocks = [slice(first, min(first + BLOCK_COLUMNS, n)) for first in range(0, n, BLOCK_COLUMNS)]
        with np.errstate(over="ignore", invalid="ignore"):
            for columns in column_blocks:
                self._encode_columns(rounding, columns)
            for _ in range(DESCENT_SWEEPS):
                for columns, square in zip(column_blocks, self._factor.diagonal_blocks, strict=True):
                    self._refine_columns(rounding, columns, square)

    def _encode_columns(self, rows: "_RowState", columns: slice) -> None:
        """Search the scales and round the codes of the blocks in some columns of every row."""
        unit_upper, end = self._factor.unit_upper, columns.stop
        for block in self._blocks(columns):
            target = rows.targets(block, rows.carried[:, block])
            # Blocks are independent, and the search is faster with many of them in one row.
            costs = np.tile(self._factor.costs[block], len(target))
            blocks = np.empty((len(target), self._search.row_bytes(self._width)), np.uint8)
            self._search.encode(target.reshape(1, -1), costs, blocks.reshape(1, -1))
            rows.out[:, self._bytes(block)] = blocks
            errors = self._round(rows, block, target, unit_upper[block, block])
            rows.carried[:, block.start : end] += errors @ unit_upper[block, block.start : end]
        rows.carried[:, end:] += rows.errors[:, columns] @ unit_upper[columns, end:]

    def _refine_columns(self, rows: "_RowState", columns: slice, square: Floats) -> None:
        """Refine the codes of the blocks in some columns by coordinate descent.

        `square` has the elements of H for these columns.
        """
        first = columns.start
        unit_upper, costs = self._factor.unit_upper[columns, first:], self._factor.costs[first:]
        products = (rows.carried[:, first:] * costs) @ unit_upper.T  # e H
        old_errors = rows.errors[:, columns].copy()
        for block in self._blocks(columns):
            local, later = slice(block.start - first, block.stop - first), slice(block.stop - first, None)
            h = square[local, local]
            others: Floats = products[:, local] - old_errors[:, local] @ np.triu(h)
            errors = self._round(rows, block, rows.targets(block, others / h.diagonal()), h / h.diagonal())
            products[:, later] += (errors - old_errors[:, local]) @ square[local, later]
        rows.carried[:, first:] += (rows.errors[:, columns] - old_errors) @ unit_upper

    def _blocks(self, columns: slice) -> Iterator[slice]:
        """Yield the column range of each block."""
        for first in range(columns.start, columns.stop, self._width):
            yield slice(first, first + self._width)

    def _bytes(self, block: slice) -> slice:
        """Return the byte range of a block in an encoded row."""
        return slice(*map(self._search.row_bytes, (block.start, block.stop)))

    def _round(self, rows: "_RowState", block: slice, target: Floats, a: Floats) -> Floats:
        """Round the codes of one block of every row and return the errors of its weights, float32 (rows, width).

        Column j is rounded to its target plus the sum of the errors of the columns i before it, times a[i, j].
        """
        x, codes = rows.x[:, block], np.ascontiguousarray(rows.out[:, self._bytes(block)])
        errors = np.empty((-(-len(x) // LANES), self._width, LANES), np.float32)
        arguments = (
            *(target.ctypes.data, target.strides[0], x.ctypes.data, x.strides[0], a.ctypes.data, a.strides[0]),
            *(codes.ctypes.data, codes.strides[0], len(x), errors.ctypes.data),
        )
        scratch = allocate_scratch()
        call_kernel(self._kernel, arguments, scratch.ctypes.data)
        rows.out[:, self._bytes(block)] = codes
        rows.errors[:, block] = result = errors.transpose(0, 2, 1).reshape(-1, self._width)[: len(x)]
        return result


class _RowState(NamedTuple):
    """The state of rows during encoding.

    `x` and `out` are the arguments of FeedbackEncoder.encode. `errors` holds e, the errors of the weights so far, and
    `carried` holds e A. Both have the shape of x and are 0 in columns that have not been encoded yet.
    """

    x: Floats
    out: Bytes
    errors: Floats
    carried: Floats

    def targets(self, block: slice, more: Floats) -> Floats:
        """Return a block's weights plus `more`; the weights alone where the sum is not finite."""
        weights = self.x[:, block]
        target: Floats = weights + more
        if not np.isfinite(target.sum()):
            np.copyto(target, weights, where=~np.isfinite(target))
        return target
