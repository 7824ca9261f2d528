"""Quantize weights with error feedback along the principal components of the inputs (low-rank correction).

    encoder = LowRankEncoder(type_number, cache_root)
    tables = make_tables(squares, components, cache_root)
    encoder.encode(x, tables, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

The inputs of a matrix have much of their power in a few principal components: their mean, and components shared by
topics and kinds of words. Errors that add up along a component affect the output most. The later columns can
compensate them, given one running sum per component. This is the error feedback of `quant.encoders.feedback` at a much
lower cost. With the mean squares m of the inputs, the r components as the columns of U, and an uncorrelated rest,

    H = D + U U^T,   D_j = m_j - |U_j|^2,   M_j = (I + sum_{i>=j} U_i^T U_i / D_i)^-1

the errors so far leave s = sum_{i<j} e_i U_i, and the part of it that the columns from j on cannot compensate costs
s M_j s^T. So column j is rounded to the value nearest to its weight plus s K_j, and its error then costs C_j,

    C_j = D_j + U_j M_{j+1} U_j^T,   K_j = M_{j+1} U_j^T / C_j,   M_j = M_{j+1} - C_j K_j K_j^T

which is the gain of a Kalman filter that runs from the last column to the first. Scales are searched with the costs C.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quant import FORMATS
from quant.encoders.encoder import Bytes, Encoder, Floats, allocate_scratch, require
from quant.encoders.feedback import SCALAR_TYPES
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import KernelFunction, call_kernel
from quant.jit.loader import Progress, load_kernels

TRUST = 0.8  # of the power in the components: other texts have other components
DAMPING = 0.03  # times the median of all D, added to each: columns that this text hardly uses may matter in another
LOW_RANK_TYPES = SCALAR_TYPES - {"Q8_0"}  # Q8_0 has hardly any error
MIN_DIAGONAL = 2.0**-20  # smallest D, relative to the mean of all m
LANES = 64  # rows that the kernel processes at once
COLUMN_STEP = 4  # columns between two updates of the carried sums
F64_LANES = 8  # components in a vector of the gains kernel
TINY = np.finfo(np.float64).tiny
MAX_RANK = 256  # components for which the scratch memory has space
PARAMETERS = ("x", "n", "gains", "couplings", "components", "rank", "y", "row_bytes", "rows")
GAINS = Kernel("quant.encoders.low_rank_gains", "gains", ("n", "width", "costs", "components", "gains", "m"))


def supports_low_rank(type_number: int) -> bool:
    """Return whether `LowRankEncoder` supports this type. See `quant.encoders.block_feedback` for the others."""
    return TYPES[type_number].name in LOW_RANK_TYPES


def low_rank_kernel(type_number: int) -> Kernel:
    """Return the kernel that a `LowRankEncoder` for this type compiles."""
    constants = (("format_module", FORMATS[type_number].format_module),)
    return Kernel("quant.encoders.low_rank_kernel", "low_rank", PARAMETERS, constants=constants)


def low_rank_kernels(type_number: int) -> list[Kernel]:
    """Return all kernels for encoding rows of a type: the kernel that encodes and the kernel that computes gains."""
    return [GAINS, low_rank_kernel(type_number)] if supports_low_rank(type_number) else []


class Gains(NamedTuple):
    """The gains for n inputs, all float64: `costs` C, (n,), `gains` K, (n, r), and `components` U, (n, r)."""

    costs: NDArray[np.float64]
    gains: NDArray[np.float64]
    components: NDArray[np.float64]


def split_covariance(squares: Floats, components: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return D, float64 (n,), and U, float64 (n, r), for inputs scaled to a mean square of 1.

    The components of a column are reduced so that they do not exceed its power.
    """
    m, size = squares.astype(np.float64), squares.mean(dtype=np.float64) or 1.0
    m, u = m / size, components.astype(np.float64) * np.sqrt(TRUST / size)
    power = np.square(u).sum(axis=1)
    u *= np.sqrt(np.minimum(power, m) / np.maximum(power, TINY))[:, None]
    d = np.maximum(m - np.square(u).sum(axis=1), 0)
    return d + (DAMPING * np.median(d) + MIN_DIAGONAL), u


def compute_gains(squares: Floats, components: Floats, cache_root: Path | None) -> Gains:
    """Return the gains for inputs with these mean squares, (n,), and principal components, (n, r)."""
    costs, u = split_covariance(squares, components)
    n, rank = u.shape
    width = -(-rank // F64_LANES) * F64_LANES
    padded, gains, m = np.zeros((n, width)), np.empty((n, width)), np.eye(width)
    padded[:, :rank] = u
    addresses = (costs.ctypes.data, padded.ctypes.data, gains.ctypes.data, m.ctypes.data)
    call_kernel(load_gains_kernel(cache_root), (n, width, *addresses))
    return Gains(costs, gains[:, :rank], u)


@cache
def load_gains_kernel(cache_root: Path | None) -> Callable[[int, int, int, int], None]:
    """Return the kernel that computes gains, and compile it unless the cache has it."""
    return KernelFunction(load_kernels([GAINS], cache_root)[0][GAINS])


class Tables(NamedTuple):
    """The gains in the memory layout of the kernel, float32.

    `costs` is (n,). `gains` and `components` are (n / COLUMN_STEP, r, COLUMN_STEP). `couplings`,
    (n / COLUMN_STEP, COLUMN_STEP, COLUMN_STEP), says how the error of a column shifts the other columns of its step.
    """

    costs: Floats
    gains: Floats
    components: Floats
    couplings: Floats


def make_tables(squares: Floats, components: Floats, cache_root: Path | None) -> Tables:
    """Return the tables for inputs with these mean squares, (n,), and principal components, (n, r).

    Raises ValueError if there are more components than `MAX_RANK`.
    """
    require(components.shape[1] <= MAX_RANK, f"{components.shape[1]} components, at most {MAX_RANK} are supported")
    known = compute_gains(squares, components, cache_root)
    gains, turned = by_column_step(known.gains), by_column_step(known.components)
    return Tables(known.costs.astype(np.float32), gains, turned, np.matmul(turned.transpose(0, 2, 1), gains))


class LowRankEncoder:
    """An encoder with low-rank error feedback for one tensor type. Several threads may use it at the same time."""

    def __init__(self, type_number: int, cache_root: Path | None, progress: Progress | None = None) -> None:
        """Compile the kernels, unless the cache has them."""
        self._search = Encoder(type_number, "normal", cache_root, progress)
        found, self.warnings = load_kernels([low_rank_kernel(type_number)], cache_root, progress)
        self._kernel = KernelFunction(found[low_rank_kernel(type_number)])

    def encode(self, x: Floats, tables: Tables, out: Bytes) -> None:
        """Encode x, float32 (rows, n), into out, uint8 (rows, row_bytes), with the tables of its n inputs.

        Raises ValueError if a shape or a layout is wrong.
        """
        costs, gains, components, couplings = tables
        self._search.encode(x, costs, out)
        arguments = (
            *(x.ctypes.data, x.shape[1], gains.ctypes.data, couplings.ctypes.data, components.ctypes.data),
            *(gains.shape[1], out.ctypes.data, out.shape[1], len(x)),
        )
        scratch = allocate_scratch()
        call_kernel(self._kernel, arguments, scratch.ctypes.data)


def by_column_step(table: NDArray[np.float64]) -> Floats:
    """Return (n, r) as float32 (n / COLUMN_STEP, r, COLUMN_STEP), so that the data of one kernel step is contiguous."""
    n, rank = table.shape
    steps = table.reshape(n // COLUMN_STEP, COLUMN_STEP, rank).transpose(0, 2, 1)
    return np.ascontiguousarray(steps, np.float32)
