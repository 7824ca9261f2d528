"""A stored tensor's values, and the bytes of a GGUF tensor."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.stored.weights import Stacked, Stored

Values: TypeAlias = NDArray[Any]  # of any type: BF16 are whole numbers of 16 bits
Floats: TypeAlias = NDArray[np.float32]
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def items(stored: Stored | Stacked) -> Values:
    """The values, flat, BF16 as whole numbers."""
    return stored.load().view(FLOATS[stored.dtype])


def floats(stored: Stored | Stacked) -> Floats:
    """The values, float32, flat."""
    values = items(stored)
    return (values.astype(np.uint32) << 16).view(np.float32) if stored.dtype == "BF16" else values.astype(np.float32)


def raw(values: Values) -> NDArray[np.uint8]:
    """The bytes, flat, rows one behind the other."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
