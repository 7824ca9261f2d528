"""Changes of a model file's metadata. Tensors stay as they are.

A change whose header has the size of the old one, and differs from it only within a block of the disk, is written into
the file. All others are written to a new file, which then takes the place of the old one.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf import file_descriptors
from localinfer.gguf.atomic_file import raise_write_errors
from localinfer.gguf.gguf_source import all_fields, source_tensor
from localinfer.gguf.reader import ARRAY, BOOL, NUMBER_DTYPES, STRING, open_gguf
from localinfer.gguf.source import Field, Source
from localinfer.gguf.split_files import Progress, SplitFile, plan_file, write_files
from localinfer.options.metadata_values import BOOLS, TYPES, decides_positions, parse_as, parse_typed

BLOCK = 4096  # bytes that a disk writes at once
TYPES_OF_NEW_KEYS = {  # what a new key has if no type is given
    r"general\..+|tokenizer\.chat_template(\..+)?": "str",
    r"tokenizer\.ggml\.\w+_token_id": "u32",
}
Changes = Mapping[str, Field | None]  # the new value of a key; None removes it


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of the metadata of `path`, the only or the first file of a model. `before` and `after` have all keys.

    `file` is what the file becomes, `header` its header now.
    """

    path: Path
    before: Mapping[str, Field]
    after: Mapping[str, Field]
    file: SplitFile
    header: bytes

    @property
    def changed_keys(self) -> list[str]:
        """The keys that are added, removed or have another value, in the order of the file."""
        keys = dict.fromkeys([*self.before, *self.after])
        return [key for key in keys if self.before.get(key) != self.after.get(key)]

    @property
    def in_place(self) -> bool:
        """Whether the change can be written into the file itself."""
        if len(self.file.layout.header) != len(self.header):
            return False
        first, last = self._changed_bytes()
        return first // BLOCK == last // BLOCK

    def apply(self, out: Path | None = None, *, replace: bool = False, progress: Progress | None = None) -> None:
        """Write the file `out`, or change the file itself. Raises LocalInferError, UsageError if `out` exists."""
        if out is not None:
            moved = SplitFile(out, self.file.layout, self.file.tensors)
            write_files([moved], replace=replace, progress=progress)
        elif self.in_place:
            self._write_in_place()
        else:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            write_files([self.file], replace=True, progress=progress)
            self.path.chmod(mode)

    def _changed_bytes(self) -> tuple[int, int]:
        """Return the offsets of the first and the last byte that differ in headers of the same size."""
        old, new = (np.frombuffer(header, np.uint8) for header in (self.header, self.file.layout.header))
        changed = np.flatnonzero(old != new)
        return (int(changed[0]), int(changed[-1])) if len(changed) else (0, 0)

    def _write_in_place(self) -> None:
        first, last = self._changed_bytes()
        with raise_write_errors(self.path, self.file.layout.size):
            descriptor = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))
            try:
                file_descriptors.write_at(descriptor, memoryview(self.file.layout.header)[first : last + 1], first)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def plan_edit(path: Path, change: Callable[[Mapping[str, Field]], Changes], out: Path | None = None) -> Edit:
    """Return the change of a file's metadata that `change` asks for, given all keys.

    Raises LocalInferError for an invalid file, UsageError for a change that is not possible.
    """
    f = open_gguf(path)
    before = all_fields(f)
    changes = change(before)
    for key in changes:
        if decides_positions(key):
            raise UsageError(f"{printable(key)}: determines where the tensors are, and cannot be changed")
    kept = {key: field for key, field in {**before, **changes}.items() if field is not None}
    tensors = [source_tensor(f, tensor) for tensor in f.tensors.values() if tensor.split_index == 0]
    source = Source(f.path, before, {tensor.name: tensor for tensor in tensors}, () if out is None else (f.path,))
    header = f.files[0].map[: f.data_offset]
    return Edit(f.path, before, kept, plan_file(source, out or f.path, kept, tensors), header)


def parse_value(key: str, text: str, field: Field | None) -> Field:
    """Return the value of a key: in the type of `field`, its value until now; arrays are JSON. A new key needs
    TYPE:VALUE, unless its name tells the type. Raises UsageError.
    """
    try:
        if field is None:
            return parse_new(key, text)
        return parse_array(field, text) if field.type == ARRAY else parse_scalar(field.type, text)
    except (ValueError, OverflowError, KeyError) as error:
        problem = f"must be of type {type_name(field)}, not {printable(text, 80)}" if field else error
        raise UsageError(f"{printable(key, 80)}: {problem}") from None


def parse_new(key: str, text: str) -> Field:
    """Return the value of a new key. Raises ValueError."""
    kind, colon, _ = text.partition(":")
    if colon and kind in TYPES:
        return Field.typed(parse_typed(text))
    kind = next((kind for pattern, kind in TYPES_OF_NEW_KEYS.items() if re.fullmatch(pattern, key)), "")
    if not kind:
        raise ValueError(f"is a new key: write TYPE:VALUE with TYPE {', '.join(TYPES)}")
    return Field.typed(parse_as(kind, text))


def parse_scalar(type: int, text: str) -> Field:
    if type == STRING:
        return Field.text(text)
    if type == BOOL:
        return Field.flag(BOOLS[text.lower()])
    return parse_number(NUMBER_DTYPES[type], text)


def parse_number(dtype: "np.dtype[np.generic]", text: str) -> Field:
    """Return a number. Raises ValueError, OverflowError."""
    value = float(text) if dtype.kind == "f" else int(text)
    if not math.isfinite(value):  # no model can be opened with it
        raise ValueError(text)
    return Field.number(value, dtype.str)


def parse_array(field: Field, text: str) -> Field:
    """Return an array of JSON values in the type of another array. Raises ValueError, OverflowError."""
    values, element = json.loads(text), int.from_bytes(field.data[:4], "little")
    if not isinstance(values, list):
        raise ValueError(text)
    if element == STRING and all(isinstance(value, str) for value in values):
        return Field.texts(values)
    if element == BOOL and all(isinstance(value, bool) for value in values):
        return Field.flags(values)
    if element in NUMBER_DTYPES and all(isinstance(value, int | float) for value in values):
        return Field.numbers(checked_numbers(values, NUMBER_DTYPES[element]))
    raise ValueError(text)


def checked_numbers(values: Sequence[float], dtype: "np.dtype[np.generic]") -> NDArray[np.generic]:
    """Return numbers in this type. Raises ValueError for integers that would be changed, OverflowError."""
    numbers = np.array(values, dtype)
    if dtype.kind != "f" and numbers.tolist() != list(values):
        raise ValueError(values)
    return numbers


def type_name(field: Field) -> str:
    """Return the name of a value's type."""
    element = int.from_bytes(field.data[:4], "little") if field.type == ARRAY else field.type
    names = {STRING: "string", BOOL: "bool"} | {number: dtype.name for number, dtype in NUMBER_DTYPES.items()}
    name = names.get(element, "array")
    return f"JSON array of {name}" if field.type == ARRAY else name
