"""Weights into blocks whose codes stand for several columns at once: errors are passed on from block to block.

    encoder = JointFeedbackEncoder(type_number, triangle, decode, cache_root)      # as quant.encoders.feedback
    encoder = JointLowRankEncoder(type_number, gains, decode, cache_root)          # as quant.encoders.low_rank
    encoder.rows(x, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

A column of IQ2 or IQ3 has no code of its own that could be rounded to what is wanted of it, but a block of 256 columns
can be searched for what is wanted of all of them, and its errors made up for by the blocks behind it. With H = R R^T as
in `quant.encoders.feedback`, e_b the errors in block b and R_ib the columns of R that belong to it, errors cost

    e H e^T = sum_b |e_b R_bb + sum_{i<b} e_i R_ib|^2 = sum_b |(e_b + s_b) R_bb|^2,    s_b = sum_{i<b} e_i R_ib R_bb^-1

so block b is searched for its weights plus s_b. In the search columns cost what is on the diagonal of R_bb R_bb^T, as
if errors within a block had nothing in common. For the H = D + U U^T of `quant.encoders.low_rank`, with M of the block
and what is behind it, and M' of what is behind it alone, columns cost D_j + U_j M' U_j^T, and

    s_b = (sum_{i<b} e_i U_i) M U_b^T D_b^-1
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from quant.encoders.encode import Bytes, Encoder, Floats, is_plain, require
from quant.encoders.low_rank import Gains, parted
from quant.encoders.triangle import CORNER, Triangle
from quant.ggml import TYPES
from quant.jit.loader import Progress

JOINT = frozenset(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"))
WIDTH = CORNER  # columns of a block

Decode = Callable[[Bytes, Floats], None]  # whole blocks, one behind the other, into (rows, n)


def is_joint(type_number: int) -> bool:
    """Whether rows of this type are encoded so."""
    return TYPES[type_number].name in JOINT


class _BlockByBlock:
    """The search for blocks, and what they decode to; what errors cost is said by those who pass them on."""

    def __init__(
        self, type_number: int, decode: Decode, costs: Floats, cache_root: Path | None, progress: Progress | None
    ) -> None:
        self._search, self._decode, self._costs = Encoder(type_number, "normal", cache_root, progress), decode, costs
        self.warnings = self._search.warnings

    def encode(
        self, x: Floats, out: Bytes, shift: Callable[[slice], Floats], pass_on: Callable[[slice, Floats], None]
    ) -> None:
        """Encode x, (rows, n), into out. `shift` says what is wanted of the columns of a block beyond their weights,
        (rows, WIDTH), and `pass_on` is told their errors."""
        (count, n), size = x.shape, self._search.row_bytes(WIDTH)
        require(n % WIDTH == 0, f"rows of {n} weights are no whole blocks of {WIDTH}")
        require(is_plain(out, np.uint8, (count, n // WIDTH * size)), f"out is not uint8, {count} rows of blocks")
        block, back = np.empty((count, size), np.uint8), np.empty((count, WIDTH), np.float32)
        for first in range(0, n, WIDTH):
            columns, place = slice(first, first + WIDTH), first // WIDTH * size
            with np.errstate(over="ignore", invalid="ignore"):
                wanted = x[:, columns] + shift(columns)
                if not np.isfinite(wanted.sum()):  # of errors as large as that none are passed on
                    np.copyto(wanted, x[:, columns], where=~np.isfinite(wanted))
            # Blocks know nothing of each other, and the search likes many of them in a row.
            costs = np.tile(self._costs[columns], count)
            self._search.rows(wanted.reshape(1, -1), costs, block.reshape(1, -1))
            self._decode(block.reshape(-1), back)
            with np.errstate(over="ignore", invalid="ignore"):
                pass_on(columns, x[:, columns] - back)
            out[:, place : place + size] = block


class JointFeedbackEncoder:
    """Rows of weights into one tensor type, for inputs that are known; several threads may use it at once."""

    def __init__(
        self,
        type_number: int,
        triangle: Triangle,
        decode: Decode,
        cache_root: Path | None,
        progress: Progress | None = None,
    ) -> None:
        """Has a kernel compiled, unless the cache has it. Raises ValueError where the triangle has no whole blocks."""
        n = len(triangle.costs)
        require(n % WIDTH == 0, f"a triangle of {n} columns has no whole blocks of {WIDTH}")
        self._shares = triangle.shares
        corners = [slice(first, first + WIDTH) for first in range(0, n, WIDTH)]
        squares = [triangle.shares[corner, corner].astype(np.float64) for corner in corners]
        self._inverses = [np.linalg.inv(square).astype(np.float32) for square in squares]
        parts = triangle.costs.astype(np.float64).reshape(-1, WIDTH)
        costs = [np.square(square) @ part for square, part in zip(squares, parts, strict=True)]
        self._blocks = _BlockByBlock(
            type_number, decode, np.concatenate(costs).astype(np.float32), cache_root, progress
        )
        self.warnings = self._blocks.warnings

    def rows(self, x: Floats, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes). Raises ValueError when a shape or a layout is not that."""
        require(x.shape[1] == len(self._shares), f"rows of {x.shape[1]} weights, a triangle of {len(self._shares)}")
        owed = np.zeros_like(x)

        def shift(columns: slice) -> Floats:
            found: Floats = owed[:, columns] @ self._inverses[columns.start // WIDTH]
            return found

        def pass_on(columns: slice, errors: Floats) -> None:
            owed[:, columns.stop :] += errors @ self._shares[columns, columns.stop :]

        self._blocks.encode(x, out, shift, pass_on)


def joint_gains_of(squares: Floats, directions: Floats) -> Gains:
    """The gains, as in `quant.encoders.low_rank`, for blocks of columns that get their codes together."""
    d, u = parted(squares, directions)
    costs, gains = np.empty(len(d)), np.empty(u.shape)
    precision = np.eye(u.shape[1])  # the inverse of M
    for first in reversed(range(0, len(d), WIDTH)):
        here = slice(first, first + WIDTH)
        costs[here] = d[here] + ((u[here] @ np.linalg.inv(precision)) * u[here]).sum(axis=1)
        shares = u[here] / d[here, None]
        precision += u[here].T @ shares
        gains[here] = shares @ np.linalg.inv(precision)
    return Gains(costs, gains, u)


class JointLowRankEncoder:
    """Rows of weights into one tensor type, for inputs that share directions; several threads may use it at once."""

    def __init__(
        self,
        type_number: int,
        known: Gains,
        decode: Decode,
        cache_root: Path | None,
        progress: Progress | None = None,
    ) -> None:
        """Has a kernel compiled, unless the cache has it. The gains are those of blocks."""
        self._gains, self._directions = known.gains.astype(np.float32), known.directions.astype(np.float32)
        self._blocks = _BlockByBlock(type_number, decode, known.costs.astype(np.float32), cache_root, progress)
        self.warnings = self._blocks.warnings

    def rows(self, x: Floats, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes). Raises ValueError when a shape or a layout is not that."""
        carried = np.zeros((len(x), self._gains.shape[1]), np.float32)

        def shift(columns: slice) -> Floats:
            return carried @ self._gains[columns].T

        def pass_on(columns: slice, errors: Floats) -> None:
            carried[:] += errors @ self._directions[columns]

        self._blocks.encode(x, out, shift, pass_on)
