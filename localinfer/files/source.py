"""What can be quantized: a model's metadata and its tensors, wherever they come from.

A GGUF file, one split over several files and a checkpoint directory all become a `Source`. Nothing is read before
somebody asks for it: a tensor's bytes come from its `load`. Knows no file format but the values of GGUF's metadata,
which is what is written in the end:

    value    type u32, then by type: an integer, a float, a bool (u8), a string, an array
    string   length u64, bytes
    array    type of its values u32, length u64, values
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import ARRAY, BOOL, NUMBERS, STRING
from quant import ggml

__all__ = ["Field", "Source", "SourceTensor"]

TYPES_OF_NUMBERS = {dtype: number for number, dtype in NUMBERS.items()}
UINT32, FLOAT32 = TYPES_OF_NUMBERS[np.dtype("<u4")], TYPES_OF_NUMBERS[np.dtype("<f4")]


@dataclass(frozen=True, slots=True)
class Field:
    """A value of the metadata as it lies in a file: `type` is GGUF's number of its type, `data` all that follows it.

    So what a file said is kept to the last bit: NaNs, text of any encoding, whatever stands for true.
    """

    type: int
    data: bytes

    @classmethod
    def text(cls, value: str | bytes) -> "Field":
        return cls(STRING, _string(value))

    @classmethod
    def flag(cls, value: bool) -> "Field":
        return cls(BOOL, bytes([value]))

    @classmethod
    def uint32(cls, value: int) -> "Field":
        return cls.number(value, "<u4")

    @classmethod
    def float32(cls, value: float) -> "Field":
        return cls.number(value, "<f4")

    @classmethod
    def number(cls, value: float, dtype: str) -> "Field":
        """`dtype` as numpy spells it: "<i4". Raises OverflowError when the value does not fit."""
        kind = np.dtype(dtype)
        return cls(TYPES_OF_NUMBERS[kind], np.array(value, kind).tobytes())

    @classmethod
    def numbers(cls, values: NDArray[Any]) -> "Field":
        """An array; its values are stored in the array's own type."""
        little = values.astype(values.dtype.newbyteorder("<"))
        return cls._array(TYPES_OF_NUMBERS[little.dtype], len(values), little.tobytes())

    @classmethod
    def flags(cls, values: Sequence[bool]) -> "Field":
        return cls._array(BOOL, len(values), bytes(values))

    @classmethod
    def texts(cls, values: Sequence[str | bytes]) -> "Field":
        return cls._array(STRING, len(values), b"".join(map(_string, values)))

    @classmethod
    def _array(cls, element: int, length: int, data: bytes) -> "Field":
        return cls(ARRAY, struct.pack("<IQ", element, length) + data)

    @property
    def length(self) -> int | None:
        """Of an array of numbers or bools; None for anything else."""
        if self.type != ARRAY:
            return None
        element, length = struct.unpack_from("<IQ", self.data)
        return int(length) if element in (*NUMBERS, BOOL) else None

    def only(self, places: Sequence[int]) -> "Field":
        """Of an array of numbers or bools the values at these places."""
        element, length = struct.unpack_from("<IQ", self.data)
        values = np.frombuffer(self.data, np.uint8, offset=12).reshape(length, -1)
        return self._array(element, len(places), values[list(places)].tobytes())

    @property
    def value(self) -> int | float | bool | bytes | NDArray[Any] | None:
        """A number, a bool, a string's bytes, an array of numbers; None for an array of anything else."""
        if self.type == STRING:
            return self.data[8:]
        if self.type == BOOL:
            return self.data != b"\0"
        if self.type == ARRAY:
            element, _ = struct.unpack_from("<IQ", self.data)
            return np.frombuffer(self.data, NUMBERS[element], offset=12) if element in NUMBERS else None
        number: int | float = np.frombuffer(self.data, NUMBERS[self.type])[0].item()
        return number


def _string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True, slots=True, eq=False)
class SourceTensor:
    """`shape` is numpy's, rows first; `type` is ggml's number.

    `load()` gives the bytes, uint8, (nbytes,): a view or a copy, which nobody keeps when the tensor is done. It raises
    LocalInferError when they cannot be read.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    load: Callable[[], NDArray[np.uint8]]
    part: int = 0  # the number of the file that it is in, where a model has several

    @property
    def type_name(self) -> str:
        return ggml.TYPES[self.type].name

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return ggml.nbytes(self.type, self.n_elements)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """`path` names it in messages; `fields` in the order in which they will be written, and so the tensors.

    `files` are those that it is read from: what is written must be none of them.
    """

    path: Path
    fields: Mapping[str, Field]
    tensors: Mapping[str, SourceTensor]
    files: tuple[Path, ...]
