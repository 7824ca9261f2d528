"""The input of quantization: a model's metadata and tensors, independent of the input file format.

A GGUF file, a split model and a checkpoint directory all become a `Source`. Tensor bytes are read lazily by `load`.
Metadata values are stored in GGUF encoding, because the output is a GGUF file:

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

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import ARRAY, BOOL, NUMBER_DTYPES, STRING
from localinfer.options.metadata_values import TypedValue
from quant import ggml

__all__ = ["Field", "Source", "SourceTensor"]

NUMBER_TYPES = {dtype: number for number, dtype in NUMBER_DTYPES.items()}
UINT32, FLOAT32 = NUMBER_TYPES[np.dtype("<u4")], NUMBER_TYPES[np.dtype("<f4")]


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata value in GGUF encoding: `type` is GGUF's type number, `data` the bytes after it.

    Keeping the bytes preserves values exactly: NaNs, text of any encoding, any nonzero byte for true.
    """

    type: int
    data: bytes

    @classmethod
    def text(cls, value: str | bytes) -> "Field":
        """Encode a string."""
        return cls(STRING, _string(value))

    @classmethod
    def flag(cls, value: bool) -> "Field":
        """Encode a bool."""
        return cls(BOOL, bytes([value]))

    @classmethod
    def uint32(cls, value: int) -> "Field":
        """Encode an unsigned 32-bit integer."""
        return cls.number(value, "<u4")

    @classmethod
    def float32(cls, value: float) -> "Field":
        """Encode a 32-bit float."""
        return cls.number(value, "<f4")

    @classmethod
    def number(cls, value: float, dtype: str) -> "Field":
        """Encode a number. `dtype` is a numpy dtype such as "<i4". Raises OverflowError if the value does not fit."""
        kind = np.dtype(dtype)
        return cls(NUMBER_TYPES[kind], np.array(value, kind).tobytes())

    @classmethod
    def typed(cls, given: TypedValue) -> "Field":
        """Encode a value of the command line in its type."""
        if isinstance(given.value, str):
            return cls.text(given.value)
        if isinstance(given.value, bool):
            return cls.flag(given.value)
        return cls.number(given.value, f"<{given.type[0]}{int(given.type[1:]) // 8}")

    @classmethod
    def numbers(cls, values: NDArray[Any]) -> "Field":
        """Encode an array of numbers in its dtype."""
        little = values.astype(values.dtype.newbyteorder("<"))
        return cls._array(NUMBER_TYPES[little.dtype], len(values), little.tobytes())

    @classmethod
    def flags(cls, values: Sequence[bool]) -> "Field":
        """Encode an array of bools."""
        return cls._array(BOOL, len(values), bytes(values))

    @classmethod
    def texts(cls, values: Sequence[str | bytes]) -> "Field":
        """Encode an array of strings."""
        return cls._array(STRING, len(values), b"".join(map(_string, values)))

    @classmethod
    def _array(cls, element: int, length: int, data: bytes) -> "Field":
        return cls(ARRAY, struct.pack("<IQ", element, length) + data)

    @property
    def length(self) -> int | None:
        """The length of an array of numbers or bools; None for anything else."""
        if self.type != ARRAY:
            return None
        element, length = struct.unpack_from("<IQ", self.data)
        return int(length) if element in (*NUMBER_DTYPES, BOOL) else None

    def take(self, indices: Sequence[int]) -> "Field":
        """Return an array of numbers or bools with the values at these indices."""
        element, length = struct.unpack_from("<IQ", self.data)
        values = np.frombuffer(self.data, np.uint8, offset=12).reshape(length, -1)
        return self._array(element, len(indices), values[list(indices)].tobytes())

    @property
    def value(self) -> int | float | bool | bytes | NDArray[Any] | None:
        """The decoded number, bool, bytes of a string or array of numbers; None for other arrays."""
        if self.type == STRING:
            return self.data[8:]
        if self.type == BOOL:
            return self.data != b"\0"
        if self.type == ARRAY:
            element, _ = struct.unpack_from("<IQ", self.data)
            return np.frombuffer(self.data, NUMBER_DTYPES[element], offset=12) if element in NUMBER_DTYPES else None
        number: int | float = np.frombuffer(self.data, NUMBER_DTYPES[self.type])[0].item()
        return number


def _string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True, slots=True, eq=False)
class SourceTensor:
    """A tensor that is loaded on demand. `shape` is numpy's order, rows first; `type` is ggml's type number.

    `load()` returns the bytes, uint8, (nbytes,), as a view or a copy that callers must not keep. It raises
    LocalInferError if they cannot be read.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    load: Callable[[], NDArray[np.uint8]]
    split_index: int = 0  # index of its file in a split model

    @property
    def type_name(self) -> str:
        return ggml.TYPES[self.type].name

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return ggml.nbytes(self.type, self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A model to write. `path` names it in messages; `fields` and `tensors` are in the order in which they are written.

    `files` are the input files, none of which may be overwritten.
    """

    path: Path
    fields: Mapping[str, Field]
    tensors: Mapping[str, SourceTensor]
    files: tuple[Path, ...]

    def require_not_input(self, out: Path) -> None:
        """Raise UsageError if `out` is one of the files to read, by whatever name."""
        for path in self.files:
            if out.exists() and path.samefile(out):
                names = printable(str(out)), printable(str(path))
                raise UsageError("{}: is the input file {}; choose another name".format(*names))
