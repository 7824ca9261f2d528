"""Where everything goes in a GGUF file that is about to be written: its header as bytes, and the tensors' places.

The layout is described in `localinfer.files.gguf`. Knows the format and no values: tensors are written by whoever has
them, each at its place. What lies between them is zeros.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from localinfer.files.gguf import DEFAULT_ALIGNMENT, MAGIC, VERSIONS
from localinfer.files.source import Field
from quant import ggml


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A line of the tensor table; `shape` is numpy's, rows first."""

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return ggml.nbytes(self.type, self.n_elements)


@dataclass(frozen=True, slots=True)
class Layout:
    """`header`, with its padding, comes first; `places` are the tensors' offsets in the file of `size` bytes."""

    header: bytes
    places: dict[str, int]
    size: int


def lay_out(fields: Mapping[str, Field], tensors: Iterable[TensorInfo]) -> Layout:
    """The file with this metadata and these tensors, in this order."""
    table = list(tensors)
    alignment = alignment_of(fields)
    offsets: list[int] = []
    end = 0
    for entry in table:
        offsets.append(end)
        end = padded(end + entry.nbytes, alignment)
    parts = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(table), len(fields))]
    parts += [string(key) + struct.pack("<I", field.type) + field.data for key, field in fields.items()]
    parts += [line(entry, offset) for entry, offset in zip(table, offsets, strict=True)]
    header = b"".join(parts)
    header = header.ljust(padded(len(header), alignment), b"\0")
    places = {entry.name: len(header) + offset for entry, offset in zip(table, offsets, strict=True)}
    return Layout(header, places, len(header) + end)


def line(entry: TensorInfo, offset: int) -> bytes:
    n_dims = len(entry.shape)
    numbers = struct.pack(f"<I{n_dims}QIQ", n_dims, *reversed(entry.shape), entry.type, offset)
    return string(entry.name) + numbers


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def alignment_of(fields: Mapping[str, Field]) -> int:
    field = fields.get("general.alignment")
    value = field.value if field else DEFAULT_ALIGNMENT
    assert isinstance(value, int)  # the reader lets no other type through
    return value


def padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
