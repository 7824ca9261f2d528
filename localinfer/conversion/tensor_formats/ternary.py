"""BitNet's ternary matrices, with the values -m, 0 and m (Ma et al., 2024). Some checkpoints store them packed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.tensor_formats.safetensors_file import StackedTensor, StoredTensor
from localinfer.conversion.tensor_formats.values import FLOATS, Floats, to_bytes, to_float32

SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def round_to_ternary(values: Floats) -> Floats:
    """Round a matrix to ternary values as in training; m is the mean absolute value."""
    mean = np.float32(max(np.abs(values).mean(dtype=np.float64), 1e-5))
    result: Floats = np.clip(np.round(values / mean), -1, 1) * mean
    return result


def unpack_ternary(
    stored: StoredTensor | StackedTensor, scale: StoredTensor | StackedTensor | None, shape: tuple[int, ...], power: int
) -> Callable[[], NDArray[np.uint8]]:
    """Return a function that unpacks the matrix to float32 bytes. A byte holds four rows; 0, 1 and 2 mean -m, 0 and m:

        rows   0 ..     in the lowest two bits of each byte
        rows n/4 ..     in the next two, and so on

    m is the scale, or its inverse if `power` is -1. Raises LocalInferError for another type or shape.
    """
    rows, columns = shape
    quarter = -(-rows // 4)
    if (stored.dtype, stored.shape) != ("U8", (quarter, columns)):
        raise stored.error(f"is {stored.dtype} {list(stored.shape)}, not U8 {[quarter, columns]}, four rows in one")
    if scale is None or scale.dtype not in FLOATS or scale.shape not in ((), (1,)):
        raise stored.error("has no scale of one value")

    def load() -> NDArray[np.uint8]:
        bits = (stored.load().reshape(quarter, columns) >> SHIFTS[:, None, None]) & 3
        signs = bits.reshape(-1, columns)[:rows].astype(np.float32) - np.float32(1)
        return to_bytes(signs * to_float32(scale) ** np.float32(power))

    return load
