"""How matvec kernels read their `quant.matmul.row_access.RowAccess`."""

from typing import Any

from numba import int64

from quant.jit.vectors import inline, load
from quant.matmul.row_access import RowAccess


@inline
def load_access(address: int) -> Any:
    """Load a `RowAccess` from memory."""
    return RowAccess(load(int64, address), load(int64, address + 8), load(int64, address + 16))
