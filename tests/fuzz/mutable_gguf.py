"""A GGUF file as separate entries that can be mutated and written again, even if they are inconsistent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from malicious_files import U32, header, kv, tensor, u32
from random_blocks import random_rows

from localinfer.gguf.reader import open_gguf
from quant.ggml import TYPE_NUMBERS, TYPES

ALIGNMENT = b"general.alignment"
BLOCK_SIZES = {kind.name: kind.elements for kind in TYPES.values()}
MAX_ELEMENTS = 1 << 24  # a tensor has more only if its dimensions were mutated before


@dataclass
class TensorEntry:
    """A tensor: `dims` as in the file, row length first; `shift` is added to its true offset."""

    name: bytes
    dims: Sequence[int]
    type: int
    data: bytes
    shift: int = 0


@dataclass
class MetadataEntry:
    """A metadata key, and its value as the bytes that follow the type number in the file."""

    name: bytes
    type: int
    value: bytes


@dataclass
class MutableGGUF:
    """The entries of a GGUF file. The header counts `more_keys` and `more_tensors` more entries than there are."""

    keys: list[MetadataEntry]
    tensors: list[TensorEntry]
    alignment: int  # the actual alignment of the data, regardless of the metadata
    known_keys: Sequence[bytes] = ()  # keys that the architecture reads
    more_keys: int = 0
    more_tensors: int = 0

    @classmethod
    def read(cls, path: Path, known_keys: Sequence[bytes] = ()) -> "MutableGGUF":
        """Return the entries of a valid file."""
        f, content = open_gguf(path), path.read_bytes()
        keys = [
            MetadataEntry(name.encode(), content[begin], content[begin + 4 : end])
            for name, (begin, end) in f.value_spans.items()
        ]
        tensors = [
            TensorEntry(name.encode(), tuple(reversed(each.shape)), each.type, each.data.tobytes())
            for name, each in f.tensors.items()
        ]
        return cls(keys, tensors, f.alignment, known_keys)

    def copy(self) -> "MutableGGUF":
        """Return a copy whose entries can be changed."""
        return replace(self, keys=list(map(replace, self.keys)), tensors=list(map(replace, self.tensors)))

    def align(self, alignment: int) -> None:
        """Change the alignment of the data and the metadata key that states it."""
        self.alignment = alignment
        others = [key for key in self.keys if key.name != ALIGNMENT]
        self.keys = [*others, MetadataEntry(ALIGNMENT, U32, u32(alignment))]

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        table, data, offset = [], [], 0
        for each in self.tensors:
            table.append(tensor(each.name, each.dims, each.type, offset + each.shift))
            data.append(each.data + bytes(-len(each.data) % self.alignment))
            offset += len(data[-1])
        head = header(len(self.tensors) + self.more_tensors, len(self.keys) + self.more_keys)
        head += b"".join([*(kv(key.name, key.type, key.value) for key in self.keys), *table])
        return head + bytes(-len(head) % self.alignment) + b"".join(data)


def randomize_as_type(tensor_entry: TensorEntry, type: str, rng: Random) -> TensorEntry:
    """Return a matrix of random values of this type if its block size divides the rows, else the tensor unchanged."""
    count = math.prod(tensor_entry.dims)
    if len(tensor_entry.dims) != 2 or not 0 < count <= MAX_ELEMENTS or tensor_entry.dims[0] % BLOCK_SIZES[type]:
        return tensor_entry
    numpy_rng = np.random.default_rng(rng.getrandbits(32))
    rows = random_rows(numpy_rng, type, tensor_entry.dims[1], tensor_entry.dims[0], tensor_entry.dims[0] ** -0.5)
    return replace(tensor_entry, type=TYPE_NUMBERS[type], data=rows.tobytes())
