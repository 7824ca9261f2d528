"""A matrix whose values are computed from several stored tensors, such as codes and scales, when it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import Floats, to_bytes, to_float32
from localinfer.errors import UnsupportedError

Integers: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class DequantizedMatrix(StoredTensor):
    """A matrix in F32. `compute` returns its values."""

    compute: Callable[[], Floats]

    def load(self) -> NDArray[np.uint8]:
        return to_bytes(self.compute())


def dequantized(name: str, shape: tuple[int, ...], of: StoredTensor, compute: Callable[[], Floats]) -> StoredTensor:
    """Return the matrix that `compute` makes of a stored tensor and others."""
    return DequantizedMatrix(name, "F32", shape, of.file, of.offset, compute)


def decode_e4m3(codes: NDArray[np.uint8]) -> Floats:
    """Return the values of E4M3 numbers: a sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinity, one NaN."""
    values: Floats = E4M3_VALUES[codes]
    return values


def e4m3_values() -> Floats:
    codes = np.arange(256)
    exponents, mantissas = (codes >> 3) & 15, codes & 7
    sizes = np.where(exponents, np.ldexp(8 + mantissas, exponents - 10), np.ldexp(mantissas, -9))
    values: Floats = np.where(codes & 128, -sizes, sizes).astype(np.float32)
    values[[127, 255]] = np.nan
    return values


def decode_e5m2(codes: NDArray[np.uint8]) -> Floats:
    """Return the values of E5M2 numbers, the upper halves of half-precision numbers."""
    values: Floats = (codes.astype("<u2") << 8).view("<f2").astype(np.float32)
    return values


def decode_e8m0(codes: NDArray[np.uint8]) -> Floats:
    """Return the values of E8M0 numbers: 2^(code - 127), and NaN for 255."""
    with np.errstate(over="ignore"):
        values: Floats = np.ldexp(np.float32(1), codes.astype(np.int32) - 127)
    values[codes == 255] = np.nan
    return values


def decode(stored: StoredTensor) -> Floats:
    """Return the values of a tensor of floats or 8-bit numbers as float32. Raises UnsupportedError for other types."""
    bytes_, shape = stored.load(), stored.shape
    if stored.dtype in DECODERS:
        return DECODERS[stored.dtype](bytes_).reshape(shape)
    if stored.dtype not in ("F32", "F16", "BF16"):
        raise stored.error(f"is {stored.dtype}, which is not supported", UnsupportedError)
    return to_float32(stored).reshape(shape)


E4M3_VALUES = e4m3_values()
DECODERS: dict[str, Callable[[NDArray[np.uint8]], Floats]] = {
    "F8_E4M3": decode_e4m3,
    "F8_E5M2": decode_e5m2,
    "F8_E8M0": decode_e8m0,
    "I8": lambda codes: codes.view(np.int8).astype(np.float32),
}
