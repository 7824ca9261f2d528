"""The values of a stored tensor, and the bytes of a GGUF tensor."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.tensor_formats.safetensors_file import StackedTensor, StoredTensor
from localinfer.errors import UnsupportedError

Values: TypeAlias = NDArray[Any]  # any dtype; BF16 as uint16
Floats: TypeAlias = NDArray[np.float32]
INTEGERS = {"I64": "<i8", "I32": "<i4"}
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def native_values(stored: StoredTensor | StackedTensor) -> Values:
    """Return the values, flat; BF16 as uint16."""
    return stored.load().view(FLOATS[stored.dtype])


def to_float32(stored: StoredTensor | StackedTensor) -> Floats:
    """Return the values as float32, flat."""
    return decode_float32(stored.load(), stored.dtype)


def to_int32(stored: StoredTensor | StackedTensor) -> NDArray[np.int32]:
    """Return integers as 32-bit ones, flat. Raises UnsupportedError for a tensor of another type, or with a number that
    does not fit."""
    values = integers(stored)
    limits = np.iinfo(np.int32)
    if values.size and not limits.min <= values.min() <= values.max() <= limits.max:
        raise stored.error("has numbers of more than 32 bits", UnsupportedError)
    return values.astype(np.int32)


def to_uint64(stored: StoredTensor | StackedTensor) -> NDArray[np.uint64]:
    """Return integers as unsigned ones, flat. Raises UnsupportedError for a tensor of another type, or with a number
    below 0."""
    values = integers(stored)
    if values.size and values.min() < 0:
        raise stored.error("has numbers below 0", UnsupportedError)
    return values.astype(np.uint64)


def integers(stored: StoredTensor | StackedTensor) -> Values:
    """Return integers in their type, flat. Raises UnsupportedError for a tensor of another type."""
    if stored.dtype not in INTEGERS:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(INTEGERS)})", UnsupportedError)
    return stored.load().view(INTEGERS[stored.dtype])


def decode_float32(raw: NDArray[np.uint8], dtype: str) -> Floats:
    """Return the values in bytes as float32, flat; `dtype` is a name in FLOATS."""
    values = raw.view(FLOATS[dtype])
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values.astype(np.float32)


def to_bytes(values: Values) -> NDArray[np.uint8]:
    """Return the values as little-endian bytes, flat, in row-major order."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
