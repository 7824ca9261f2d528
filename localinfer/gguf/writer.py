"""Compute the layout of a new GGUF file: its header bytes and the offset of each tensor.

`localinfer.gguf.reader` describes the format. Callers write the tensor data at these offsets; padding is zeros.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from localinfer.gguf.reader import DEFAULT_ALIGNMENT, MAGIC, VERSIONS
from localinfer.gguf.source import Field
from quant import ggml


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An entry of the tensor table; `shape` is numpy's order, rows first."""

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return ggml.nbytes(self.type, self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The header with its padding, the offset of each tensor in the file, and the total file size in bytes."""

    header: bytes
    offsets: dict[str, int]
    size: int


def make_layout(fields: Mapping[str, Field], tensors: Iterable[TensorInfo]) -> Layout:
    """Return the layout of a file with this metadata and these tensors, in this order."""
    table = list(tensors)
    alignment = get_alignment(fields)
    offsets: list[int] = []
    end = 0
    for entry in table:
        offsets.append(end)
        end = align(end + entry.nbytes, alignment)
    chunks = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(table), len(fields))]
    chunks += [encode_string(key) + struct.pack("<I", field.type) + field.data for key, field in fields.items()]
    chunks += [encode_tensor_info(entry, offset) for entry, offset in zip(table, offsets, strict=True)]
    header = b"".join(chunks)
    header = header.ljust(align(len(header), alignment), b"\0")
    offsets_by_name = {entry.name: len(header) + offset for entry, offset in zip(table, offsets, strict=True)}
    return Layout(header, offsets_by_name, len(header) + end)


def encode_tensor_info(entry: TensorInfo, offset: int) -> bytes:
    """Return the header entry of a tensor whose data begin at `offset`."""
    n_dims = len(entry.shape)
    numbers = struct.pack(f"<I{n_dims}QIQ", n_dims, *reversed(entry.shape), entry.type, offset)
    return encode_string(entry.name) + numbers


def encode_string(text: str) -> bytes:
    """Return a string as GGUF stores it: its length as uint64, then UTF-8."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def get_alignment(fields: Mapping[str, Field]) -> int:
    """Return the alignment of tensor data, in bytes."""
    field = fields.get("general.alignment")
    value = field.value if field else DEFAULT_ALIGNMENT
    assert isinstance(value, int)  # checked by the reader
    return value


def align(n: int, alignment: int) -> int:
    """Return the smallest multiple of the alignment that is not below n."""
    return -(-n // alignment) * alignment
