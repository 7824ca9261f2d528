"""The Python interface of the encoders: quantize rows of float32 weights into blocks of a tensor type.

    encoder = Encoder(type_number, "normal", cache_root)
    encoder.encode(x, None, out)      # float32 (rows, n) -> uint8 (rows, row_bytes)

Each format module supplies, through its `encoder(effort)`, the inlined function

    encode(x, importance, n, y, scratch)

It reads a row of n float32 at address x and writes its blocks to address y. `importance` is the address of n float32,
the weight of the squared error of each column, or 0 if all columns count the same. `scratch` is the address of
`SCRATCH_BYTES` of memory for the exclusive use of the call; if rows of the format begin with a header, `NUMBERS_BYTES`
more for each group of 32 columns follow. All numbers must be finite and no importance negative; the code that reads a
file checks that. Rows are encoded independently, so the blocks do not depend on how rows are split into calls or on
the number of threads.
"""

from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quant import FORMATS
from quant.encoders.trellis_points import POINT_SETS, search_tables
from quant.ggml import TYPES, nbytes
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import KernelFunction, call_kernel
from quant.jit.loader import Progress, load_kernels

EFFORTS = ("fast", "normal")  # how much time the search for a smaller error may take
GROUPS = 16  # groups of columns that are searched at once, one in each SIMD lane
SCRATCH_BYTES, LINE = 1 << 18, 64
TABLES = SCRATCH_BYTES - 8  # the offset in scratch memory of the address of a format's tables, if it has any
ROW_NUMBERS, NUMBERS_BYTES = SCRATCH_BYTES, 12  # the offset in scratch memory, and bytes, of numbers of a row's groups
PARAMETERS = ("x", "importance", "n", "y", "row_bytes", "rows")

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def encoder_kernel(type_number: int, effort: str) -> Kernel:
    """Return the kernel that an `Encoder` for this type and effort compiles."""
    spec = FORMATS[type_number]
    module, function = spec.encode_kernel.split(":")
    return Kernel(module, function, PARAMETERS, constants=(("effort", effort), ("format_module", spec.format_module)))


class Encoder:
    """An encoder of rows of weights into one tensor type. Several threads may use it at the same time."""

    def __init__(
        self, type_number: int, effort: str, cache_root: Path | None, progress: Progress | None = None
    ) -> None:
        """Compile the kernel, unless the cache under `cache_root` has it.

        `warnings` lists problems with that cache that the user should see.
        """
        self.type, kernel = TYPES[type_number], encoder_kernel(type_number, effort)
        self._type_number = type_number
        self._tables = search_tables(self.type.name) if self.type.name in POINT_SETS else None
        addresses, self.warnings = load_kernels([kernel], cache_root, progress)
        self._kernel = KernelFunction(addresses[kernel])

    def row_bytes(self, n: int) -> int:
        """Return the size in bytes of an encoded row of n weights."""
        return nbytes(self._type_number, [n])

    def encode(self, x: Floats, importance: Floats | None, out: Bytes) -> None:
        """Encode x, float32 (rows, n), into out, uint8 (rows, row_bytes); `importance` is float32 (n,) or None.

        Raises ValueError if a shape, a dtype or a memory layout is wrong.
        """
        count, n = x.shape
        require(n % self.type.elements == 0, f"rows of {n} weights are not whole blocks of {self.type.elements}")
        require(has_layout(x, np.float32, (count, n)), "x is not C-contiguous float32")
        require(
            has_layout(out, np.uint8, (count, self.row_bytes(n))),
            f"out is not C-contiguous uint8 ({count}, {self.row_bytes(n)})",
        )
        require(
            importance is None or has_layout(importance, np.float32, (n,)),
            f"importance is not C-contiguous float32 ({n},)",
        )
        together = 1 if self.type.header else rows_per_batch(n)
        costs = None if importance is None else np.tile(importance, min(together, count))
        whole = count - count % together
        self._encode_rows(x[:whole].reshape(whole // together, together * n), costs, out[:whole])
        if remaining := count - whole:
            self._encode_rows(x[whole:].reshape(1, remaining * n), costs, out[whole:])

    def _encode_rows(self, x: Floats, importance: Floats | None, out: Bytes) -> None:
        """Encode long rows, each of which is one or several consecutive rows of the matrix.

        `importance` has at least the length of a long row. The blocks are written to `out` in order.
        """
        count, n = x.shape
        weight = 0 if importance is None else importance.ctypes.data
        arguments = (x.ctypes.data, weight, n, out.ctypes.data, self.row_bytes(n), count)
        numbers = NUMBERS_BYTES * GROUPS * -(-n // (32 * GROUPS)) if self.type.header else 0
        scratch = allocate_scratch(SCRATCH_BYTES + numbers)
        if self._tables is not None:
            scratch[TABLES : TABLES + 8].view(np.int64)[0] = self._tables.ctypes.data
        call_kernel(self._kernel, arguments, scratch.ctypes.data)


def rows_per_batch(n: int) -> int:
    """Return how many rows of n weights to encode as one, so that their groups fill whole vectors.

    Blocks are independent of each other. Without this, a row of 640 weights (Gemma 3) leaves three quarters of its last
    vector empty.
    """
    return GROUPS // gcd(n // 32, GROUPS)


def allocate_scratch(size: int = SCRATCH_BYTES) -> Bytes:
    """Return `size` bytes of memory, aligned to a cache line: vectors that cross a cache line are slower."""
    buffer = np.empty(size + LINE, np.uint8)
    first = -buffer.ctypes.data % LINE
    return buffer[first : first + size]


def require(holds: bool, message: str) -> None:
    """Raise ValueError(message) unless `holds`."""
    if not holds:
        raise ValueError(message)


def has_layout(array: NDArray[np.generic], kind: type[np.generic], shape: tuple[int, ...]) -> bool:
    """Return whether an array has this dtype and shape and is C-contiguous, so that a kernel needs only its address."""
    return array.dtype == kind and array.shape == shape and array.flags.c_contiguous
