"""NVFP4 matrices of checkpoints written by ModelOpt or compressed-tensors. Bits are only moved, nothing is rounded.

A checkpoint stores two adjacent values per byte, a separate E4M3 scale byte per 16 values, and one global scale per
matrix. GGUF stores values and scales together (see `quant.formats.nvfp4`), and the global scale as a tensor
`.scale`. The input scale of the checkpoint becomes `.input_scale`, which is not used here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import to_float32
from localinfer.errors import UnsupportedError

DTYPE = "NVFP4"
GROUP, BLOCK, BLOCK_BYTES = 16, 64, 36  # values per scale, values and bytes per GGUF block
MAGNITUDE_MASK = np.uint8(0x7F)  # scales have no sign bit
SCALE_NAMES = {  # checkpoint suffix: (GGUF suffix, whether the inverse is stored)
    "_scale_2": (".scale", False),
    "_global_scale": (".scale", True),
    "input_scale": (".input_scale", False),
    "input_global_scale": (".input_scale", True),
}
KV_CACHE_SCALES = (".k_scale", ".v_scale")  # scales of an 8-bit KV cache


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Matrix(StoredTensor):
    """An NVFP4 matrix: `shape` is that of the values; the bytes are in GGUF's layout."""

    codes: StoredTensor
    scales: StoredTensor

    def load(self) -> NDArray[np.uint8]:
        rows, columns = self.shape
        pairs = self.codes.load().reshape(-1, GROUP // 2)
        values = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1, 2, GROUP // 2)
        halves = (values[:, 0] | values[:, 1] << 4).reshape(rows, columns // BLOCK, -1)
        scales = self.scales.load().reshape(rows, columns // BLOCK, -1) & MAGNITUDE_MASK
        return np.concatenate([scales, halves], axis=-1).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class MatrixScale(StoredTensor):
    """A scale of a matrix in F32; inverted if the checkpoint stores the inverse."""

    of: StoredTensor
    inverse: bool

    def load(self) -> NDArray[np.uint8]:
        with np.errstate(divide="ignore"):
            value = 1 / to_float32(self.of) if self.inverse else to_float32(self.of)
        return value.astype(np.float32).view(np.uint8)


def join_matrices(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors with codes and scales joined to NVFP4 matrices, named `.weight`, `.scale` and `.input_scale`.

    Raises UnsupportedError for a matrix whose rows are not whole blocks, LocalInferError for scales of another
    shape.
    """
    remaining: dict[str, StoredTensor] = dict(stored)
    joined: dict[str, StoredTensor] = {}
    for name, scales in stored.items():
        if scales.dtype == "F8_E4M3" and len(scales.shape) == 2 and name.endswith(".weight_scale"):
            weight = name.removesuffix("_scale")
            codes = remaining.pop(weight, None) or remaining.pop(f"{weight}_packed", None)
            if codes is None or codes.dtype != "U8":
                continue
            del remaining[name]
            joined[weight] = make_matrix(weight, codes, scales)
            joined |= {each.name: each for each in take_scales(weight.removesuffix(".weight"), remaining)}
    return {name: each for name, each in remaining.items() if not (joined and name.endswith(KV_CACHE_SCALES))} | joined


def make_matrix(name: str, codes: StoredTensor, scales: StoredTensor) -> Nvfp4Matrix:
    """Return the matrix. Raises UnsupportedError if codes and scales have other shapes."""
    rows, columns = codes.shape[0], 2 * codes.shape[-1]
    if codes.shape != (rows, columns // 2) or columns % BLOCK:
        raise codes.error(
            f"has shape {list(codes.shape)}; rows of {BLOCK} values in {BLOCK // 2} bytes", UnsupportedError
        )
    if scales.shape != (rows, columns // GROUP):
        raise scales.error(f"has shape {list(scales.shape)}, not {[rows, columns // GROUP]}")
    return Nvfp4Matrix(name, DTYPE, (rows, columns), codes.file, codes.offset, codes, scales)


def take_scales(base: str, remaining: dict[str, StoredTensor]) -> Iterator[MatrixScale]:
    """Yield the scales of a matrix, and remove them from `left`."""
    for ending, (name, inverse) in SCALE_NAMES.items():
        of = remaining.pop(f"{base}.weight{ending}" if ending[0] == "_" else f"{base}.{ending}", None)
        if of is not None:
            if of.dtype not in ("F32", "BF16", "F16") or of.shape not in ((), (1,)):
                raise of.error(f"is {of.dtype} {list(of.shape)}, not one number")
            yield MatrixScale(f"{base}{name}", "F32", (1,), of.file, of.offset, of, inverse)
