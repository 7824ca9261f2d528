"""Weights into blocks, such that outputs keep their mean: the face of the kernel for Python.

    encoder = OffsetEncoder(type_number, squares, means, cache_root)
    encoder.rows(x, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

The inputs of a matrix are not about zero: in attention and in gates columns that are always on have much of all power.
So rounding moves the mean of an output, by sum_j e_j u_j with errors e and means u of the inputs: in attention that is
a fifth to two fifths of all noise. It can be made up for along the row, with one number that is carried. With the mean
squares m of the inputs, as if columns had nothing in common but that they have means,

    H = D + u u^T,   D_j = m_j - u_j^2,   T_j = sum_{i>=j} u_i^2 / D_i

and the triangle of `quant.encoders.feedback` has A_ij = u_i k_j with k_j = u_j / (D_j (1 + T_j)): column j is rounded
to what is nearest to its weight plus k_j sum_{i<j} e_i u_i, and its error then costs D_j + u_j^2 / (1 + T_{j+1}).
Scales are searched for these costs.
"""

from pathlib import Path

import numpy as np

from quant import FORMATS
from quant.encoders.encode import Bytes, Encoder, Floats, scratch_room
from quant.encoders.feedback import SCALAR
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress, addresses
from quant.jit.record import HEADER_WORDS, RECORD_WORDS, RUN

TRUST = 0.8  # of the means' squares: other texts have other means
DAMPING = 0.03  # of the median of all D, which is added to each: what is hardly used may be used elsewhere
CARRYING = SCALAR - {"Q8_0"}  # which has hardly any error
LEAST = 2.0**-20  # of the mean of all m, where nothing else is left of a D
LANES = 64  # rows that the kernel rounds side by side
PARAMETERS = ("x", "n", "shares", "means", "y", "row_bytes", "rows")


def takes_centers(type_number: int) -> bool:
    """Whether rows of this type can be encoded so."""
    return TYPES[type_number].name in CARRYING


def offset_kernel(type_number: int) -> Kernel:
    """The kernel that an OffsetEncoder has compiled."""
    constants = (("room", FORMATS[type_number].room),)
    return Kernel("quant.encoders.offset_rows", "offset", PARAMETERS, constants=constants)


def carried(squares: Floats, means: Floats, width: int = 1) -> tuple[Floats, Floats, Floats]:
    """The costs, k and u of columns, (n,) each, as above; no mean is larger than the root of the mean square. Where
    `width` columns get their codes together, what is behind them is what is behind the last one."""
    m = squares.astype(np.float64)
    size = m.mean() or 1.0
    m /= size
    u = np.sqrt(TRUST) * np.clip(means.astype(np.float64) / np.sqrt(size), -np.sqrt(m), np.sqrt(m))
    d = m - u * u
    d += DAMPING * np.median(d) + LEAST
    share = (u * u / d).reshape(-1, width).sum(axis=1)
    behind = np.append(np.cumsum(share[:0:-1])[::-1], 0.0)
    here, behind = np.repeat(behind + share, width), np.repeat(behind, width)
    costs, shares = d + u * u / (1 + behind), u / (d * (1 + here))
    return costs.astype(np.float32), shares.astype(np.float32), u.astype(np.float32)


class OffsetEncoder:
    """Rows of weights into one tensor type, for inputs of known mean; several threads may use it at once."""

    def __init__(
        self,
        type_number: int,
        squares: Floats,
        means: Floats,
        cache_root: Path | None,
        progress: Progress | None = None,
    ) -> None:
        """Has kernels compiled, unless the cache has them. The means of the inputs' squares and of themselves: (n,)."""
        self._search = Encoder(type_number, "normal", cache_root, progress)
        found, self.warnings = addresses([offset_kernel(type_number)], cache_root, progress)
        self._kernel = RUN(found[offset_kernel(type_number)])
        self._costs, self._shares, self._means = carried(squares, means)

    def rows(self, x: Floats, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes). Raises ValueError when a shape or a layout is not that."""
        self._search.rows(x, self._costs, out)
        record, scratch = np.zeros(RECORD_WORDS, np.int64), scratch_room()
        arguments = (
            *(x.ctypes.data, x.shape[1], self._shares.ctypes.data, self._means.ctypes.data),
            *(out.ctypes.data, out.shape[1], len(x)),
        )
        record[HEADER_WORDS : HEADER_WORDS + len(PARAMETERS)] = arguments
        self._kernel(record.ctypes.data, 0, 1, scratch.ctypes.data)
