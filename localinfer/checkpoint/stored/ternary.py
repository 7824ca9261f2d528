"""BitNet's matrices, which have three values: -m, 0 and m (Ma et al., 2024). Some checkpoints have them packed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.stored.values import FLOATS, Floats, floats, raw
from localinfer.checkpoint.stored.weights import Stacked, Stored

SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def rounded(values: Floats) -> Floats:
    """What is computed with, of a matrix as it was trained: m is the mean of all sizes."""
    mean = np.float32(max(np.abs(values).mean(dtype=np.float64), 1e-5))
    result: Floats = np.clip(np.round(values / mean), -1, 1) * mean
    return result


def unpacked(
    stored: Stored | Stacked, scale: Stored | Stacked | None, shape: tuple[int, ...], power: int
) -> Callable[[], NDArray[np.uint8]]:
    """What gives the bytes of the matrix, float32. Four rows are in one, 0, 1 and 2 stand for -m, 0 and m:

        rows   0 ..     in the lowest two bits of each byte
        rows n/4 ..     in the next two, and so on

    m is the scale, or with a power of -1 its inverse. Raises LocalInferError for another type or shape.
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
        return raw(signs * floats(scale) ** np.float32(power))

    return load
