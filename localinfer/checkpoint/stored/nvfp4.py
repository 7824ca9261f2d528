"""Matrices that are stored in NVFP4 already, as ModelOpt and compressed-tensors do: nothing is rounded, bits change
places.

A checkpoint has two neighbouring values in a byte, their scales apart, a byte of E4M3 for every 16, and a number for
each matrix. GGUF has values and scales together (see `quant.formats.nvfp4`), and the number, which products are
multiplied with, as a tensor `.scale`; beside it what inputs were divided by, `.input_scale`, which nobody needs here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.stored.values import floats
from localinfer.checkpoint.stored.weights import Stored
from localinfer.errors import Unsupported

DTYPE = "NVFP4"
SCALED, BLOCK, BLOCK_BYTES = 16, 64, 36  # values with a scale, and of a block of GGUF
SIGN = np.uint8(0x7F)  # all bits but that of the sign, which no scale has
NUMBERS = {  # endings beside that of a matrix: GGUF's, and whether it is the inverse
    "_scale_2": (".scale", False),
    "_global_scale": (".scale", True),
    "input_scale": (".input_scale", False),
    "input_global_scale": (".input_scale", True),
}
OF_CACHE = (".k_scale", ".v_scale")  # of keys and values that were to be kept in 8 bits


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(Stored):
    """`shape` is that of the values, of which the bytes are GGUF's."""

    codes: Stored
    scales: Stored

    def load(self) -> NDArray[np.uint8]:
        rows, columns = self.shape
        pairs = self.codes.load().reshape(-1, SCALED // 2)
        values = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1, 2, SCALED // 2)
        halves = (values[:, 0] | values[:, 1] << 4).reshape(rows, columns // BLOCK, -1)
        scales = self.scales.load().reshape(rows, columns // BLOCK, -1) & SIGN
        return np.concatenate([scales, halves], axis=-1).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Number(Stored):
    """One number in F32, or its inverse."""

    of: Stored
    inverse: bool

    def load(self) -> NDArray[np.uint8]:
        with np.errstate(divide="ignore"):
            value = 1 / floats(self.of) if self.inverse else floats(self.of)
        return value.astype(np.float32).view(np.uint8)


def joined(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The same tensors, with one for each matrix in NVFP4 and one for each of its numbers, by the names `.weight`,
    `.scale` and `.input_scale`.

    Raises Unsupported naming a matrix whose rows are no whole blocks, LocalInferError for scales of another shape.
    """
    left: dict[str, Stored] = dict(stored)
    found: dict[str, Stored] = {}
    for name, scales in stored.items():
        if scales.dtype == "F8_E4M3" and len(scales.shape) == 2 and name.endswith(".weight_scale"):
            weight = name.removesuffix("_scale")
            codes = left.pop(weight, None) or left.pop(f"{weight}_packed", None)
            if codes is None or codes.dtype != "U8":
                continue
            del left[name]
            found[weight] = matrix(weight, codes, scales)
            found |= {each.name: each for each in numbers(weight.removesuffix(".weight"), left)}
    return {name: each for name, each in left.items() if not (found and name.endswith(OF_CACHE))} | found


def matrix(name: str, codes: Stored, scales: Stored) -> Matrix:
    rows, columns = codes.shape[0], 2 * codes.shape[-1]
    if codes.shape != (rows, columns // 2) or columns % BLOCK:
        raise codes.error(f"has shape {list(codes.shape)}; rows of {BLOCK} values in {BLOCK // 2} bytes", Unsupported)
    if scales.shape != (rows, columns // SCALED):
        raise scales.error(f"has shape {list(scales.shape)}, not {[rows, columns // SCALED]}")
    return Matrix(name, DTYPE, (rows, columns), codes.file, codes.offset, codes, scales)


def numbers(base: str, left: dict[str, Stored]) -> Iterator[Number]:
    """Those that stand beside a matrix, which are taken from what is left."""
    for ending, (name, inverse) in NUMBERS.items():
        of = left.pop(f"{base}.weight{ending}" if ending[0] == "_" else f"{base}.{ending}", None)
        if of is not None:
            if of.dtype not in ("F32", "BF16", "F16") or of.shape not in ((), (1,)):
                raise of.error(f"is {of.dtype} {list(of.shape)}, not one number")
            yield Number(f"{base}{name}", "F32", (1,), of.file, of.offset, of, inverse)
