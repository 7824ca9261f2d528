"""Weights to look at: rows of any tensor type as floats, decoded by the kernels that inference uses."""

import struct

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import Unsupported
from localinfer.files.gguf import Tensor
from quant import FORMATS, ggml
from quant.jit import loader
from quant.jit.kernel import Kernel, kernel_of
from quant.jit.record import RUN, call

F32 = 0
PARAMETERS = ("tokens", "ids", "w", "row_bytes", "n", "y", "factor")
ONE = int.from_bytes(struct.pack("<d", 1.0), "little")


def decoding_kernel(type_number: int) -> Kernel:
    """The kernel that a Decoder of this type needs."""
    form = FORMATS[type_number]
    return kernel_of(form.get_rows, PARAMETERS, frozenset({"factor"}), {"room": form.room})


class Decoder:
    """Rows of one tensor type as floats; several threads may use it at once."""

    def __init__(self, type_number: int) -> None:
        kernel = decoding_kernel(type_number)
        addresses, _ = loader.addresses([kernel], paths.jit_dir())
        self._type = type_number
        self._kernel = RUN(addresses[kernel])

    def rows(self, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Decode whole rows, one behind the other, into out, (rows, n): to the last bit what ggml defines."""
        assert data.shape == (out.shape[0] * ggml.nbytes(self._type, out.shape[1]),)
        if self._type == F32:  # the kernel would multiply each by one
            out[:] = data.view(np.float32).reshape(out.shape)
        else:
            self.chosen(data, np.arange(len(out), dtype=np.int32), out)

    def chosen(self, data: NDArray[np.uint8], ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Decode those of the whole rows in data that have these numbers, into out, (len(ids), n)."""
        count, n = out.shape
        row_bytes = ggml.nbytes(self._type, n)
        assert ids.shape == (count,)
        assert count == 0 or (ids.min() >= 0 and (int(ids.max()) + 1) * row_bytes <= data.size)
        assert ids.flags.c_contiguous
        assert data.flags.c_contiguous
        assert out.flags.c_contiguous
        tokens = np.array([count])
        places = tokens.ctypes.data, ids.ctypes.data, data.ctypes.data
        call(self._kernel, (*places, row_bytes, n, out.ctypes.data, ONE))


def dequantize(tensor: Tensor) -> NDArray[np.float32]:
    """The tensor's values, float32, in its shape.

    Raises Unsupported for a type that has no kernels.
    """
    if tensor.type not in FORMATS:
        raise Unsupported(f"tensor {tensor.name}: type {tensor.type_name} is not supported")
    values = np.empty((tensor.n_elements // tensor.shape[-1], tensor.shape[-1]), np.float32)
    Decoder(tensor.type).rows(tensor.data, values)
    return values.reshape(tensor.shape)
