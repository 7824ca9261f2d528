"""Weights into blocks, errors made up for in the few directions that inputs share: the face of the kernel for Python.

    encoder = LowRankEncoder(type_number, cache_root)
    tables = tables_of(squares, directions, cache_root)
    encoder.rows(x, tables, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

The inputs of a matrix have much of their power in a few directions: their mean, to begin with, and what topics and
kinds of words have in common. Errors that add up along one of them move outputs the most, and can be made up for by the
columns behind, with one number for each direction that is carried along the row: that is error feedback as in
`quant.encoders.feedback`, for the price of a few products. With the mean squares m of the inputs and r directions, the
columns of U, as if what is left had nothing in common,

    H = D + U U^T,   D_j = m_j - |U_j|^2,   M_j = (I + sum_{i>=j} U_i^T U_i / D_i)^-1

errors so far have left s = sum_{i<j} e_i U_i, and what the columns from j on cannot mend of it costs s M_j s^T. So
column j is rounded to what is nearest to its weight plus s K_j, and its error then costs C_j,

    C_j = D_j + U_j M_{j+1} U_j^T,   K_j = M_{j+1} U_j^T / C_j,   M_j = M_{j+1} - C_j K_j K_j^T

which is the gain of Kalman's filter, run from the last column to the first. Scales are searched for these costs.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quant import FORMATS
from quant.encoders.encode import Bytes, Encoder, Floats, require, scratch_room
from quant.encoders.feedback import SCALAR
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress, addresses
from quant.jit.record import RUN, call

TRUST = 0.8  # of the power in the directions: other texts have others
DAMPING = 0.03  # of the median of all D, which is added to each: what is hardly used may be used elsewhere
CARRYING = SCALAR - {"Q8_0"}  # which has hardly any error
LEAST = 2.0**-20  # of the mean of all m, where nothing else is left of a D
LANES = 64  # rows that the kernel rounds side by side
STEP = 4  # columns between which it looks at what is carried
DOUBLES = 8  # directions that the kernel for gains looks at together
TINY = np.finfo(np.float64).tiny
MOST = 256  # directions that there is room for
PARAMETERS = ("x", "n", "gains", "couplings", "directions", "rank", "y", "row_bytes", "rows")
GAINS = Kernel("quant.encoders.low_rank_gains", "gains", ("n", "width", "costs", "directions", "gains", "m"))


def carries(type_number: int) -> bool:
    """Whether rows of this type can be encoded so; of others see `quant.encoders.joint`."""
    return TYPES[type_number].name in CARRYING


def low_rank_kernel(type_number: int) -> Kernel:
    """The kernel that a LowRankEncoder has compiled."""
    constants = (("room", FORMATS[type_number].room),)
    return Kernel("quant.encoders.low_rank_rows", "low_rank", PARAMETERS, constants=constants)


def low_rank_kernels(type_number: int) -> list[Kernel]:
    """Those that it takes to encode rows of a type: that of the encoder, and that of its tables."""
    return [GAINS, low_rank_kernel(type_number)] if carries(type_number) else []


class Gains(NamedTuple):
    """What is known of n inputs, as above: `costs` C, (n,), `gains` K, (n, r), and `directions` U, (n, r)."""

    costs: NDArray[np.float64]
    gains: NDArray[np.float64]
    directions: NDArray[np.float64]


def parted(squares: Floats, directions: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """D and U, (n,) and (n, r), for inputs whose mean square is 1 on the average. Directions have no more of a column's
    power than there is."""
    m, size = squares.astype(np.float64), squares.mean(dtype=np.float64) or 1.0
    m, u = m / size, directions.astype(np.float64) * np.sqrt(TRUST / size)
    power = np.square(u).sum(axis=1)
    u *= np.sqrt(np.minimum(power, m) / np.maximum(power, TINY))[:, None]
    d = np.maximum(m - np.square(u).sum(axis=1), 0)
    return d + (DAMPING * np.median(d) + LEAST), u


def gains_of(squares: Floats, directions: Floats, cache_root: Path | None) -> Gains:
    """The gains for inputs of these mean squares, (n,), and directions, (n, r)."""
    costs, u = parted(squares, directions)
    n, rank = u.shape
    width = -(-rank // DOUBLES) * DOUBLES
    padded, gains, m = np.zeros((n, width)), np.empty((n, width)), np.eye(width)
    padded[:, :rank] = u
    places = (costs.ctypes.data, padded.ctypes.data, gains.ctypes.data, m.ctypes.data)
    call(gains_kernel(cache_root), (n, width, *places))
    return Gains(costs, gains[:, :rank], u)


@cache
def gains_kernel(cache_root: Path | None) -> Callable[[int, int, int, int], None]:
    """The kernel that finds gains, compiled unless the cache has it."""
    return RUN(addresses([GAINS], cache_root)[0][GAINS])


class Tables(NamedTuple):
    """The same as the kernel wants it, float32: `costs`, (n,), and for every STEP columns `gains`, (n / STEP, r, STEP),
    `directions` alike, and `couplings`, (n / STEP, STEP, STEP), how much of a column's error the others get."""

    costs: Floats
    gains: Floats
    directions: Floats
    couplings: Floats


def tables_of(squares: Floats, directions: Floats, cache_root: Path | None) -> Tables:
    """The tables for inputs of these mean squares, (n,), and directions, (n, r). Raises ValueError for more directions
    than `MOST`."""
    require(directions.shape[1] <= MOST, f"{directions.shape[1]} directions, at most {MOST} are carried")
    known = gains_of(squares, directions, cache_root)
    gains, turned = stepwise(known.gains), stepwise(known.directions)
    return Tables(known.costs.astype(np.float32), gains, turned, np.matmul(turned.transpose(0, 2, 1), gains))


class LowRankEncoder:
    """Rows of weights into one tensor type, for inputs that share directions; several threads may use it at once."""

    def __init__(self, type_number: int, cache_root: Path | None, progress: Progress | None = None) -> None:
        """Has kernels compiled, unless the cache has them."""
        self._search = Encoder(type_number, "normal", cache_root, progress)
        found, self.warnings = addresses([low_rank_kernel(type_number)], cache_root, progress)
        self._kernel = RUN(found[low_rank_kernel(type_number)])

    def rows(self, x: Floats, tables: Tables, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes), with the tables of its n inputs. Raises ValueError when a
        shape or a layout is not that."""
        costs, gains, directions, couplings = tables
        self._search.rows(x, costs, out)
        arguments = (
            *(x.ctypes.data, x.shape[1], gains.ctypes.data, couplings.ctypes.data, directions.ctypes.data),
            *(gains.shape[1], out.ctypes.data, out.shape[1], len(x)),
        )
        scratch = scratch_room()
        call(self._kernel, arguments, scratch.ctypes.data)


def stepwise(table: NDArray[np.float64]) -> Floats:
    """(n, r) as float32 (n / STEP, r, STEP): what the kernel needs at a time lies together."""
    n, rank = table.shape
    steps = table.reshape(n // STEP, STEP, rank).transpose(0, 2, 1)
    return np.ascontiguousarray(steps, np.float32)
