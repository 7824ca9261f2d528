"""Weights into blocks: the face of the encoders for Python. Knows no model and no file.

    encoder = Encoder(type_number, "normal", cache_root)
    encoder.rows(x, None, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

What a format does with a row is said in its room, by `encoder(effort)`: the word

    encode(x, importance, n, y, scratch)

which writes the row of n float32 at address x as blocks at address y. importance is the address of n float32, the
weight of the squared error of each column, or 0 where all count the same; scratch is `SCRATCH_BYTES` of memory that
nobody else uses meanwhile. Numbers are finite and no importance is negative: whoever reads a file proves that. Every
row is encoded by itself, so blocks do not depend on how rows are cut into calls, or on threads.
"""

from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quant import FORMATS
from quant.ggml import TYPES
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress, addresses
from quant.jit.record import RUN, call

EFFORTS = ("fast", "normal")  # how long is searched for blocks with a smaller error
GROUPS = 16  # of columns that are searched side by side, in the lanes of a vector
SCRATCH_BYTES, LINE = 1 << 18, 64
PARAMETERS = ("x", "importance", "n", "y", "row_bytes", "rows")

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def encoding_kernel(type_number: int, effort: str) -> Kernel:
    """The kernel that an Encoder has compiled."""
    form = FORMATS[type_number]
    module, function = form.encode.split(":")
    return Kernel(module, function, PARAMETERS, constants=(("effort", effort), ("room", form.room)))


class Encoder:
    """Rows of weights into one tensor type; several threads may use it at once."""

    def __init__(
        self, type_number: int, effort: str, cache_root: Path | None, progress: Progress | None = None
    ) -> None:
        """Has the kernel compiled, unless the cache under `cache_root` has it.

        `warnings` is what the user should know about that cache.
        """
        self.type, kernel = TYPES[type_number], encoding_kernel(type_number, effort)
        found, self.warnings = addresses([kernel], cache_root, progress)
        self._kernel = RUN(found[kernel])

    def row_bytes(self, n: int) -> int:
        """What a row of n weights takes."""
        return n // self.type.elements * self.type.bytes

    def rows(self, x: Floats, importance: Floats | None, out: Bytes) -> None:
        """Encode x, (rows, n), into out, (rows, row_bytes); `importance` is (n,).

        Raises ValueError when a shape, a type or a layout in memory is not that.
        """
        count, n = x.shape
        require(n % self.type.elements == 0, f"rows of {n} weights are no whole blocks of {self.type.elements}")
        require(is_plain(x, np.float32, (count, n)), "x is not float32, row after row")
        require(is_plain(out, np.uint8, (count, self.row_bytes(n))), f"out is not uint8, {count} rows of blocks")
        require(importance is None or is_plain(importance, np.float32, (n,)), f"importance is not {n} float32")
        together = rows_together(n)
        costs = None if importance is None else np.tile(importance, min(together, count))
        whole = count - count % together
        self._encode(x[:whole].reshape(whole // together, together * n), costs, out[:whole])
        if rest := count - whole:
            self._encode(x[whole:].reshape(1, rest * n), costs, out[whole:])

    def _encode(self, x: Floats, importance: Floats | None, out: Bytes) -> None:
        """Long rows, each of them one or several behind each other; `importance` has at least their length. The blocks
        lie in `out` as they come."""
        count, n = x.shape
        weight = 0 if importance is None else importance.ctypes.data
        arguments = (x.ctypes.data, weight, n, out.ctypes.data, self.row_bytes(n), count)
        scratch = scratch_room()
        call(self._kernel, arguments, scratch.ctypes.data)


def rows_together(n: int) -> int:
    """How many rows of n weights, encoded as one, are whole vectors of blocks: blocks know nothing of each other, and
    of the last vector of a row of 640, as Gemma 3 has them, they would fill a quarter."""
    return GROUPS // gcd(n // 32, GROUPS)


def scratch_room() -> Bytes:
    """Memory for a kernel to work in, from a cache line on: vectors that lie across two take longer."""
    room = np.empty(SCRATCH_BYTES + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + SCRATCH_BYTES]


def require(holds: bool, message: str) -> None:
    """Raise ValueError where it does not."""
    if not holds:
        raise ValueError(message)


def is_plain(array: NDArray[np.generic], kind: type[np.generic], shape: tuple[int, ...]) -> bool:
    """Whether an array is what a kernel may walk over with an address alone."""
    return array.dtype == kind and array.shape == shape and array.flags.c_contiguous
