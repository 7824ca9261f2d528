"""Dequantize tensor rows to float32 with the kernels that inference uses."""

import struct

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import Tensor
from quant import FORMATS, ggml
from quant.jit import loader
from quant.jit.kernel import Kernel, make_kernel
from quant.jit.kernel_call import KernelFunction, call_kernel

F32 = 0
PARAMETERS = ("tokens", "ids", "per_token", "w", "row_bytes", "n", "y", "factor")
ONE = int.from_bytes(struct.pack("<d", 1.0), "little")


def get_rows_kernel(type_number: int) -> Kernel:
    """Return the kernel that a Decoder of this tensor type needs."""
    fmt = FORMATS[type_number]
    return make_kernel(fmt.get_rows_kernel, PARAMETERS, frozenset({"factor"}), {"format_module": fmt.format_module})


class Decoder:
    """Decodes rows of one tensor type to float32. Safe to use from several threads."""

    def __init__(self, type_number: int) -> None:
        kernel = get_rows_kernel(type_number)
        addresses, _ = loader.load_kernels([kernel], paths.jit_dir())
        self._type = type_number
        self._kernel = KernelFunction(addresses[kernel])

    def rows(self, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Decode consecutive rows into `out`, float32 (rows, n), bit-exact with ggml."""
        assert data.shape == (out.shape[0] * ggml.nbytes(self._type, out.shape[1:]),)
        if self._type == F32:  # a plain copy; the kernel would multiply by 1
            out[:] = data.view(np.float32).reshape(out.shape)
        else:
            self.selected_rows(data, np.arange(len(out), dtype=np.int32), out)

    def selected_rows(self, data: NDArray[np.uint8], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Decode the rows of `data` with these indices into `out`, float32 (len(ids), n)."""
        count, n = out.shape
        row_bytes = ggml.nbytes(self._type, [n])
        assert ids.shape == (count,)
        assert count == 0 or (ids.min() >= 0 and (int(ids.max()) + 1) * row_bytes <= data.size)
        assert ids.flags.c_contiguous
        assert data.flags.c_contiguous
        assert out.flags.c_contiguous
        tokens = np.array([count])
        addresses = tokens.ctypes.data, ids.ctypes.data, 1, data.ctypes.data
        call_kernel(self._kernel, (*addresses, row_bytes, n, out.ctypes.data, ONE))


def dequantize(tensor: Tensor) -> NDArray[np.float32]:
    """Return the tensor's values, float32, in its shape.

    Raises UnsupportedError for a type that has no kernels.
    """
    if tensor.type not in FORMATS:
        raise UnsupportedError(f"tensor {tensor.name}: type {tensor.type_name} is not supported")
    values = np.empty((tensor.n_elements // tensor.shape[-1], tensor.shape[-1]), np.float32)
    Decoder(tensor.type).rows(tensor.data, values)
    return values.reshape(tensor.shape)
