"""Weights to look at: any tensor of a file as a numpy array, decoded by the kernels that inference uses."""

import struct

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import Unsupported
from localinfer.gguf import Tensor
from localinfer.plan import kernel_of
from localinfer.team import RUN
from quant import FORMATS, jit
from quant.record import HEADER_WORDS, RECORD_WORDS

PARAMETERS = ("tokens", "ids", "w", "row_bytes", "n", "y", "factor")


def dequantize(tensor: Tensor) -> NDArray[np.float32]:
    """The tensor's values, float32, in its shape: to the last bit what the format defines.

    Raises Unsupported for a type that has no kernels.
    """
    if tensor.type not in FORMATS:
        raise Unsupported(f"tensor {tensor.name}: type {tensor.type_name} is not supported")
    fmt, n = FORMATS[tensor.type], tensor.shape[-1]
    count = tensor.n_elements // n
    kernel = kernel_of(fmt.get_rows, PARAMETERS, frozenset({"factor"}), {"room": fmt.room})
    addresses, _ = jit.addresses([kernel], paths.jit_dir())
    values = np.empty((count, n), np.float32)
    tokens, ids = np.array([count]), np.arange(count, dtype=np.int32)
    record = np.zeros(RECORD_WORDS, np.int64)
    one = int.from_bytes(struct.pack("<d", 1.0), "little")
    places = tokens.ctypes.data, ids.ctypes.data, tensor.data.ctypes.data
    record[HEADER_WORDS : HEADER_WORDS + len(PARAMETERS)] = (
        *places,
        tensor.nbytes // count,
        n,
        values.ctypes.data,
        one,
    )
    RUN(addresses[kernel])(record.ctypes.data, 0, 1, 0)
    return values.reshape(tensor.shape)
