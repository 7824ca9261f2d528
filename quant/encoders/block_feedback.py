"""Error feedback from block to block, for formats whose codes each stand for several columns (codebooks).

    encoder = BlockFeedbackEncoder(type_number, factor, decode, cache_root)      # as quant.encoders.feedback
    encoder = BlockLowRankEncoder(type_number, gains, decode, cache_root)        # as quant.encoders.low_rank
    encoder.encode(x, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

A column of IQ2 or IQ3 has no separate code that could be rounded to a target. But a block of 256 columns can be
searched for the targets of all of them, and the later blocks compensate its errors. With H = R R^T as in
`quant.encoders.feedback`, e_b the errors in block b and R_ib the columns of R that belong to it, errors cost

    e H e^T = sum_b |e_b R_bb + sum_{i<b} e_i R_ib|^2 = sum_b |(e_b + s_b) R_bb|^2,    s_b = sum_{i<b} e_i R_ib R_bb^-1

so the targets of block b are its weights plus s_b. The search uses the diagonal of R_bb R_bb^T as the costs of the
columns, as if errors within a block were uncorrelated. For the H = D + U U^T of `quant.encoders.low_rank`, with M of
the block and all later ones, and M' of the later ones alone, columns cost D_j + U_j M' U_j^T, and

    s_b = (sum_{i<b} e_i U_i) M U_b^T D_b^-1
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from quant.encoders.cholesky import BLOCK_COLUMNS, CholeskyFactor
from quant.encoders.encoder import Bytes, Encoder, Floats, has_layout, require
from quant.encoders.low_rank import Gains, split_covariance
from quant.ggml import TYPES
from quant.jit.loader import Progress

CODEBOOK_TYPES = frozenset(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"))
BLOCK_WIDTH = BLOCK_COLUMNS  # columns in a block

Decode = Callable[[Bytes, Floats], None]  # consecutive blocks -> float32 (rows, n)


def is_codebook_type(type_number: int) -> bool:
    """Return whether the encoders of this module support this type."""
    return TYPES[type_number].name in CODEBOOK_TYPES


class _BlockEncoder:
    """The search for blocks and the decoding of the result. The callers define cost and propagation of errors."""

    def __init__(
        self, type_number: int, decode: Decode, costs: Floats, cache_root: Path | None, progress: Progress | None
    ) -> None:
        self._search, self._decode, self._costs = Encoder(type_number, "normal", cache_root, progress), decode, costs
        self.warnings = self._search.warnings

    def encode(
        self, x: Floats, out: Bytes, shift: Callable[[slice], Floats], propagate: Callable[[slice, Floats], None]
    ) -> None:
        """Encode x, float32 (rows, n), into out.

        `shift` returns the difference between the targets and the weights of a block, (rows, BLOCK_WIDTH). `propagate`
        receives the errors of each block.
        """
        (count, n), size = x.shape, self._search.row_bytes(BLOCK_WIDTH)
        require(n % BLOCK_WIDTH == 0, f"rows of {n} weights are not whole blocks of {BLOCK_WIDTH}")
        require(
            has_layout(out, np.uint8, (count, n // BLOCK_WIDTH * size)),
            f"out is not C-contiguous uint8 ({count}, {n // BLOCK_WIDTH * size})",
        )
        block, decoded = np.empty((count, size), np.uint8), np.empty((count, BLOCK_WIDTH), np.float32)
        for first in range(0, n, BLOCK_WIDTH):
            columns, offset = slice(first, first + BLOCK_WIDTH), first // BLOCK_WIDTH * size
            with np.errstate(over="ignore", invalid="ignore"):
                target = x[:, columns] + shift(columns)
                if not np.isfinite(target.sum()):  # errors that overflow are not propagated
                    np.copyto(target, x[:, columns], where=~np.isfinite(target))
            # Blocks are independent, and the search is faster with many of them in one row.
            costs = np.tile(self._costs[columns], count)
            self._search.encode(target.reshape(1, -1), costs, block.reshape(1, -1))
            self._decode(block.reshape(-1), decoded)
            with np.errstate(over="ignore", invalid="ignore"):
                propagate(columns, x[:, columns] - decoded)
            out[:, offset : offset + size] = block


class BlockFeedbackEncoder:
    """A GPTQ encoder, block by block, for one tensor type. Several threads may use it at the same time."""

    def __init__(
        self,
        type_number: int,
        factor: CholeskyFactor,
        decode: Decode,
        cache_root: Path | None,
        progress: Progress | None = None,
    ) -> None:
        """Compile the kernel, unless the cache has it.

        Raises ValueError if the columns of the factor are not whole blocks.
        """
        n = len(factor.costs)
        require(n % BLOCK_WIDTH == 0, f"{n} columns are not whole blocks of {BLOCK_WIDTH}")
        self._unit_upper = factor.unit_upper
        column_blocks = [slice(first, first + BLOCK_WIDTH) for first in range(0, n, BLOCK_WIDTH)]
        squares = [factor.unit_upper[columns, columns].astype(np.float64) for columns in column_blocks]
        self._inverses = [np.linalg.inv(square).astype(np.float32) for square in squares]
        block_costs = factor.costs.astype(np.float64).reshape(-1, BLOCK_WIDTH)
        costs = [np.square(square) @ diagonal for square, diagonal in zip(squares, block_costs, strict=True)]
        self._blocks = _BlockEncoder(
            type_number, decode, np.concatenate(costs).astype(np.float32), cache_root, progress
        )
        self.warnings = self._blocks.warnings

    def encode(self, x: Floats, out: Bytes) -> None:
        """Encode x, float32 (rows, n), into out, uint8 (rows, row_bytes).

        Raises ValueError if a shape or a layout is wrong.
        """
        require(
            x.shape[1] == len(self._unit_upper), f"rows of {x.shape[1]} weights, a factor of {len(self._unit_upper)}"
        )
        carried = np.zeros_like(x)

        def shift(columns: slice) -> Floats:
            shift_of_block: Floats = carried[:, columns] @ self._inverses[columns.start // BLOCK_WIDTH]
            return shift_of_block

        def propagate(columns: slice, errors: Floats) -> None:
            carried[:, columns.stop :] += errors @ self._unit_upper[columns, columns.stop :]

        self._blocks.encode(x, out, shift, propagate)


def compute_block_gains(squares: Floats, components: Floats) -> Gains:
    """Return the gains, as in `quant.encoders.low_rank`, for blocks of columns that are encoded together."""
    d, u = split_covariance(squares, components)
    costs, gains = np.empty(len(d)), np.empty(u.shape)
    precision = np.eye(u.shape[1])  # the inverse of M
    for first in reversed(range(0, len(d), BLOCK_WIDTH)):
        block = slice(first, first + BLOCK_WIDTH)
        costs[block] = d[block] + ((u[block] @ np.linalg.inv(precision)) * u[block]).sum(axis=1)
        ratios = u[block] / d[block, None]
        precision += u[block].T @ ratios
        gains[block] = ratios @ np.linalg.inv(precision)
    return Gains(costs, gains, u)


class BlockLowRankEncoder:
    """An encoder with low-rank error feedback, block by block. Several threads may use it at the same time."""

    def __init__(
        self,
        type_number: int,
        gains: Gains,
        decode: Decode,
        cache_root: Path | None,
        progress: Progress | None = None,
    ) -> None:
        """Compile the kernel, unless the cache has it. `gains` is the result of `compute_block_gains`."""
        self._gains, self._components = gains.gains.astype(np.float32), gains.components.astype(np.float32)
        self._blocks = _BlockEncoder(type_number, decode, gains.costs.astype(np.float32), cache_root, progress)
        self.warnings = self._blocks.warnings

    def encode(self, x: Floats, out: Bytes) -> None:
        """Encode x, float32 (rows, n), into out, uint8 (rows, row_bytes).

        Raises ValueError if a shape or a layout is wrong.
        """
        carried = np.zeros((len(x), self._gains.shape[1]), np.float32)

        def shift(columns: slice) -> Floats:
            return carried @ self._gains[columns].T

        def propagate(columns: slice, errors: Floats) -> None:
            carried[:] += errors @ self._components[columns]

        self._blocks.encode(x, out, shift, propagate)
