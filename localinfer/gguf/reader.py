"""GGUF reader: open a model file and return its metadata and tensor table, memory-mapped without copying.

A model is one file or several split files. Each split is validated separately, then all of them together. Files are
untrusted: every count, length, offset, alignment and shape is checked against the actual file size before use, with
Python integers, which do not overflow. Code that uses an open `GGUF` needs no further bounds checks. The reader does
not depend on model architectures: callers check the keys and tensors that a model needs and the tensor types.

File layout, little-endian throughout (versions 2 and 3):

    magic "GGUF", version u32, n_tensors u64, n_kv u64
    n_kv times       key: string, type: u32, value         string: length u64, bytes
    n_tensors times  name: string, n_dims: u32, dims: u64[n_dims] (row length first), type: u32, offset: u64
    padding to the alignment, then the tensors' data, each padded to the alignment, in the table's order

The first split holds the model's metadata. Every split has split.no (from 0), split.count and split.tensors.count
(the number of tensors in all splits).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.gguf import file_signatures
from localinfer.gguf.cursor import Cursor, StringArray
from localinfer.gguf.mapped_file import MappedFile
from localinfer.gguf.split_names import SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS_COUNT, split_paths
from localinfer.options.metadata_values import Scalar
from quant import ggml

__all__ = ["GGUF", "StringArray", "Tensor", "Value", "open_gguf", "open_split", "read_value"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_SIZE = 24
HEADER_LIMIT = 64 << 20  # bytes of metadata and tensor table; 262,144 tokens with their scores take 7 MB
MAX_KEY = 65535  # bytes, by the format
MAX_NAME = 63  # bytes of a tensor's name: readers in C keep a NUL after it
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32
MAX_ENTRIES = 1 << 16  # keys, or tensors

UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9
NUMBER_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
SMALLEST_KEY_VALUE = 8 + 1 + 4 + 1  # bytes: a key of one letter, an 8-bit value
SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # bytes: a name of one letter, one dimension

# These keys decide how a file is interpreted, so their values must be valid UTF-8.
UTF8_KEYS = (
    "general.architecture",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.chat_template",
)


Value: TypeAlias = int | float | bool | str | NDArray[np.generic] | StringArray
TYPE_NAMES: Final[dict[type, str]] = {
    int: "an integer",
    float: "a floating-point number",
    bool: "a bool",
    str: "a string",
    np.ndarray: "an array of numbers",
    StringArray: "an array of strings",
}
T = TypeVar("T", int, float, bool, str, NDArray[np.generic], StringArray)
D = TypeVar("D")


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of an open file. `data` is its bytes, uint8, (nbytes,), read-only; `shape` is numpy's, rows first."""

    name: str
    shape: tuple[int, ...]
    type: int
    data: NDArray[np.uint8]
    offset: int  # offset of the data from the start of the file
    split_index: int = 0  # index of the file in a split model

    @property
    def type_name(self) -> str:
        return ggml.TYPES[self.type].name

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return len(self.data)


class _NoDefault:
    """The type of the marker for "no default value"."""


_NO_DEFAULT = _NoDefault()


@dataclass(frozen=True, eq=False)
class GGUF:
    """An open, validated model. Its files stay mapped as long as any array made from them is in use.

    Header values other than tensors come from the first file. `trailing_bytes` is the number of bytes after the
    last tensor of each file. `overrides` are the values in `metadata` that options set instead of the file
    (`localinfer.gguf.overrides`).
    """

    version: int
    metadata: dict[str, Value]
    value_spans: dict[str, tuple[int, int]]  # offsets of each value, from its type to its end
    tensors: dict[str, Tensor]
    alignment: int
    data_offset: int
    trailing_bytes: int
    files: tuple[MappedFile, ...]
    overrides: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of the first file."""
        return self.files[0].path

    @property
    def architecture(self) -> str:
        """The value of `general.architecture`, or "" if it is missing or not a string."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    @property
    def size(self) -> int:
        """The total size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def in_memory(self) -> bool:
        """Whether the file was read into process memory instead of being mapped."""
        return self.files[0].in_memory

    def error(self, field: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """Return a one-line error about a key or tensor of this model: a UsageError for a key that options set, unless
        `kind` says more."""
        if field in self.overrides:
            problem = f"{problem} (an option sets this key)"
            kind = UsageError if kind is LocalInferError else kind
        tensor = self.tensors.get(field.removeprefix("tensor "))
        return self.files[tensor.split_index if tensor else 0].error(printable(field, 80), problem, kind)

    def check_unchanged(self) -> None:
        """Raise LocalInferError if a file was truncated or overwritten since it was opened."""
        for file in self.files:
            file.check_unchanged()

    def accept_changes(self) -> None:
        """Accept the files as they are now, for code that writes them while they are open."""
        for file in self.files:
            file.accept_changes()

    @overload
    def get(self, key: str, kind: type[T], *, signed: bool = False) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D, *, signed: bool = False) -> T | D: ...
    def get(self, key: str, kind: type, default: object = _NO_DEFAULT, *, signed: bool = False) -> object:
        """Return the value of `key`, which must be a `kind`: finite, UTF-8 and, unless `signed`, not negative.

        Every integer type becomes an int. Raises LocalInferError if the key is missing and there is no default.
        """
        if key not in self.metadata:
            if default is _NO_DEFAULT:
                raise self.error(key, f"is missing; it must be {TYPE_NAMES[kind]}")
            return default
        value = self.metadata[key]
        if problem := _type_error(value, kind, signed):
            raise self.error(key, problem)
        return value


def open_gguf(path: str | Path, open_file: Callable[[Path], MappedFile] = MappedFile) -> GGUF:
    """Map a model and validate all of its metadata and tensors. Any file of a split model opens the whole model.

    `open_file` selects how a file is opened (mapped by default).
    Raises LocalInferError with `<path>: <key or tensor>: <what is wrong>`.
    """
    split = open_split(Path(path), open_file)
    count = split.get(SPLIT_COUNT, int, 1)
    if count == 1:
        return split
    names = split_paths(split.path, count)
    if not names:
        ending = f"-NNNNN-of-{count:05d}.gguf"
        problem = f"a file of a model with {count} splits must have a name that ends in {ending}"
        raise split.error(SPLIT_COUNT, problem)
    return _join_splits([split if name == split.path else open_split(name, open_file) for name in names])


def open_split(path: Path, open_file: Callable[[Path], MappedFile] = MappedFile) -> GGUF:
    """Map and validate one file of a model, ignoring its other splits."""
    file = open_file(path)
    header = Cursor(file, HEADER_LIMIT)
    version, n_tensors, n_kv = _read_sizes(header)
    metadata, spans = _read_metadata(header, n_kv)
    _check_split(header, metadata, n_tensors)
    alignment = _checked_alignment(header, metadata)
    infos = _read_table(header, n_tensors)
    data_offset = _align(header.position, alignment)
    tensors = _locate_tensors(header, infos, alignment, data_offset)
    used = sum(_align(tensor.nbytes, alignment) for tensor in tensors.values())
    trailing = max(0, file.size - data_offset - used)
    return GGUF(version, metadata, spans, tensors, alignment, data_offset, trailing, (file,))


def _join_splits(splits: list[GGUF]) -> GGUF:
    """Combine the files of a split model, given in order. Raises LocalInferError if they do not belong together."""
    tensors: dict[str, Tensor] = {}
    for number, split in enumerate(splits):
        if split.get(SPLIT_COUNT, int, 1) != len(splits):
            raise split.error(SPLIT_COUNT, f"must be {len(splits)} as in the other splits")
        if split.get(SPLIT_NUMBER, int, 0) != number:
            raise split.error(SPLIT_NUMBER, f"must be {number} in the file of this name")
        for tensor in split.tensors.values():
            if tensor.name in tensors:
                raise split.error(tensor.name, "is also in another split of the model")
            tensors[tensor.name] = replace(tensor, split_index=number)
    for split in splits:
        expected = split.get(SPLIT_TENSORS_COUNT, int, len(tensors))
        if expected != len(tensors):
            raise split.error(SPLIT_TENSORS_COUNT, f"{expected}, but {len(tensors)} tensors are in the splits")
    files = tuple(file for split in splits for file in split.files)
    trailing_bytes = sum(split.trailing_bytes for split in splits)
    return replace(splits[0], tensors=tensors, trailing_bytes=trailing_bytes, files=files)


def read_value(path: Path, wanted: str) -> Value | None:
    """Return one metadata value of a file, or None. Nothing after that key is read. Raises LocalInferError."""
    header = Cursor(MappedFile(path), HEADER_LIMIT)
    _, _, n_kv = _read_sizes(header)
    for key in _read_keys(header, n_kv):
        value = _read_value(header, key)
        if key == wanted:
            return value
    return None


def _read_sizes(header: Cursor) -> tuple[int, int, int]:
    """Return version, number of tensors and number of metadata keys."""
    head = header.file.map[: file_signatures.HEAD_BYTES]
    if not head.startswith(MAGIC):
        kind = file_signatures.describe_file(head)
        header.fail("magic", f"expected 'GGUF', found '{printable(head[:4])}'{kind and f': this is {kind}'}")
    if header.file.size < HEADER_SIZE:
        header.fail("header", f"truncated: {HEADER_SIZE} bytes are needed, the file has {header.file.size}")
    header.take(len(MAGIC), "magic")
    version = header.integer(4, "version")
    if version and version & 0xFFFF == 0:
        header.fail("version", "big-endian GGUF is not supported")
    if version not in VERSIONS:
        header.fail("version", f"{version} is not supported, only {VERSIONS[0]} and {VERSIONS[1]} are")
    n_tensors = header.count("n_tensors", SMALLEST_TENSOR, MAX_ENTRIES)
    return version, n_tensors, header.count("n_kv", SMALLEST_KEY_VALUE, MAX_ENTRIES)


def _read_metadata(header: Cursor, n_kv: int) -> tuple[dict[str, Value], dict[str, tuple[int, int]]]:
    """Return the metadata values, and the offsets in the file where each value begins and ends."""
    metadata: dict[str, Value] = {}
    spans: dict[str, tuple[int, int]] = {}
    for key in _read_keys(header, n_kv):
        if key in metadata:
            header.fail(key, "appears twice")
        begin = header.position
        metadata[key] = _read_value(header, key)
        spans[key] = begin, header.position
    return metadata, spans


def _read_keys(header: Cursor, n_kv: int) -> Iterator[str]:
    """Yield each key. The caller reads its value before it asks for the next key."""
    for index in range(n_kv):
        yield header.name(f"key {index}", MAX_KEY)


def _read_value(header: Cursor, key: str) -> Value:
    type_id = header.integer(4, key)
    if key == "general.alignment" and type_id != UINT32:
        header.fail(key, f"its type is {type_id}, only {UINT32} (u32) is allowed")
    if type_id == STRING:
        raw = header.string(key, HEADER_LIMIT)
        return header.text(raw, key) if key in UTF8_KEYS else raw.decode("utf-8", "surrogateescape")
    if type_id == BOOL:
        return header.integer(1, key) != 0
    if type_id == ARRAY:
        return _read_array(header, key)
    if type_id not in NUMBER_DTYPES:
        header.fail(key, f"unknown value type {type_id}")
    number: int | float = header.numbers(NUMBER_DTYPES[type_id], 1, key)[0].item()
    return number


def _read_array(header: Cursor, key: str) -> Value:
    """Return an array; numbers are a view on the mapped file. Bytes of bools may have values other than 0 and 1."""
    type_id = header.integer(4, key)
    if type_id == STRING:
        return header.strings(key)
    if type_id == ARRAY:
        header.fail(key, "an array of arrays is not supported")
    if type_id != BOOL and type_id not in NUMBER_DTYPES:
        header.fail(key, f"unknown type {type_id} of the array's values")
    dtype = NUMBER_DTYPES.get(type_id, NUMBER_DTYPES[0])
    values = header.numbers(dtype, header.count(key, dtype.itemsize), key)
    return values != 0 if type_id == BOOL else values


def _check_split(header: Cursor, metadata: dict[str, Value], n_tensors: int) -> None:
    """Raise LocalInferError if the split.* keys of one file contradict each other."""
    count = _split_number(header, metadata, SPLIT_COUNT, 1)
    number = _split_number(header, metadata, SPLIT_NUMBER, 0)
    in_all = _split_number(header, metadata, SPLIT_TENSORS_COUNT, n_tensors)
    if not 0 <= number < count:
        header.fail(SPLIT_NUMBER, f"there is no split {number} of {count} (split.count)")
    if n_tensors > in_all or (count == 1 and n_tensors < in_all):
        header.fail(SPLIT_TENSORS_COUNT, f"{in_all}, but {n_tensors} tensors are in this file")


def _split_number(header: Cursor, metadata: dict[str, Value], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if problem := _type_error(value, int, signed=False):
        header.fail(key, problem)
    assert isinstance(value, int)  # checked by _type_error
    return value


def _checked_alignment(header: Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)  # checked by _read_value
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        header.fail("general.alignment", f"{alignment} is not a power of two up to {MAX_ALIGNMENT}")
    return alignment


class _TensorInfo(NamedTuple):
    """An entry of the tensor table; `offset` counts from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def nbytes(self) -> int:
        return ggml.nbytes(self.type, self.shape)


def _read_table(header: Cursor, n_tensors: int) -> dict[str, _TensorInfo]:
    infos: dict[str, _TensorInfo] = {}
    for index in range(n_tensors):
        name = header.name(f"tensor {index}", MAX_NAME)
        if name in infos:
            header.fail(name, "appears twice")
        infos[name] = _read_info(header, name)
    return infos


def _read_info(header: Cursor, name: str) -> _TensorInfo:
    n_dims = header.integer(4, name)
    if not 1 <= n_dims <= MAX_DIMS:
        header.fail(name, f"{n_dims} dimensions, a tensor has 1 to {MAX_DIMS}")
    dims = [header.integer(8, name) for _ in range(n_dims)]
    if not all(0 < dim < 1 << 63 for dim in dims):
        header.fail(name, f"impossible shape {dims}")
    type_id = header.integer(4, name)
    if type_id not in ggml.TYPES:
        header.fail(name, ggml.NON_STORAGE_TYPES.get(type_id, f"unknown tensor type {type_id}"))
    block = ggml.TYPES[type_id]
    if dims[0] % block.elements:
        header.fail(name, f"rows of {dims[0]} values, not a multiple of the {block.elements} of {block.name}")
    return _TensorInfo(name, tuple(reversed(dims)), type_id, header.integer(8, name))


def _locate_tensors(
    header: Cursor, infos: dict[str, _TensorInfo], alignment: int, data_offset: int
) -> dict[str, Tensor]:
    """Return the tensors with their data. They must fill the data section in table order, without gaps or overlaps."""
    tensors: dict[str, Tensor] = {}
    expected = 0
    for name, info in infos.items():
        if info.offset % alignment:
            header.fail(name, f"offset {info.offset} is not a multiple of the alignment {alignment}")
        if info.offset != expected:
            header.fail(name, f"offset {info.offset}, but the tensors before it end at {expected}")
        start = data_offset + info.offset
        if info.nbytes > header.file.size - start:
            remaining = max(0, header.file.size - start)
            problem = f"{info.nbytes} bytes of data at offset {start}, but the file has {remaining} there"
            header.fail(name, f"{problem}: it is incomplete; download or copy it again")
        data = header.file.bytes[start : start + info.nbytes]
        tensors[name] = Tensor(name, info.shape, info.type, data, start)
        expected = _align(info.offset + info.nbytes, alignment)
    return tensors


def _align(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _type_error(value: Value, kind: type, signed: bool) -> str:
    """Return the reason why `value` does not have the requested type, or "" if it does."""
    if type(value) is not kind:
        return f"expected {TYPE_NAMES[kind]}, got {TYPE_NAMES[type(value)]}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if isinstance(value, int | float) and value < 0 and not signed:
        return f"{value} is negative"
    if isinstance(value, str) and any("\udc80" <= char <= "\udcff" for char in value):
        return "is not valid UTF-8"
    return ""
