"""A GGUF file in pieces, which can be changed one by one and put together again, whether they fit or not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from attacks import U32, header, kv, tensor, u32
from random_blocks import random_blocks

from localinfer.files.gguf import open_gguf
from quant.ggml import TYPES

ALIGNMENT = b"general.alignment"
BLOCK = {kind.name: kind.elements for kind in TYPES.values()}
NUMBERS = {kind.name: number for number, kind in TYPES.items()}
MOST_ELEMENTS = 1 << 24  # of a tensor: more only because its dimensions were changed before


@dataclass
class Weights:
    """A tensor: `dims` as in a file, row length first; `shift` is how far its offset is from where its data lies."""

    name: bytes
    dims: Sequence[int]
    type: int
    data: bytes
    shift: int = 0


@dataclass
class Key:
    """A key and its value, as a file has it behind the type's number."""

    name: bytes
    type: int
    value: bytes


@dataclass
class Draft:
    """The header promises so many `more` keys and tensors than there are."""

    keys: list[Key]
    tensors: list[Weights]
    alignment: int  # of the data, whatever the keys say
    understood: Sequence[bytes] = ()  # keys that mean something to its architecture
    more_keys: int = 0
    more_tensors: int = 0

    @classmethod
    def of(cls, path: Path, understood: Sequence[bytes] = ()) -> "Draft":
        """What a valid file consists of."""
        f, content = open_gguf(path), path.read_bytes()
        keys = [Key(name.encode(), content[begin], content[begin + 4 : end]) for name, (begin, end) in f.spans.items()]
        tensors = [
            Weights(name.encode(), tuple(reversed(each.shape)), each.type, each.data.tobytes())
            for name, each in f.tensors.items()
        ]
        return cls(keys, tensors, f.alignment, understood)

    def align(self, alignment: int) -> None:
        """Lay the data out anew, and say so."""
        self.alignment = alignment
        others = [key for key in self.keys if key.name != ALIGNMENT]
        self.keys = [*others, Key(ALIGNMENT, U32, u32(alignment))]

    def to_bytes(self) -> bytes:
        """The file."""
        table, data, offset = [], [], 0
        for each in self.tensors:
            table.append(tensor(each.name, each.dims, each.type, offset + each.shift))
            data.append(each.data + bytes(-len(each.data) % self.alignment))
            offset += len(data[-1])
        head = header(len(self.tensors) + self.more_tensors, len(self.keys) + self.more_keys)
        head += b"".join([*(kv(key.name, key.type, key.value) for key in self.keys), *table])
        return head + bytes(-len(head) % self.alignment) + b"".join(data)


def in_type(weights: Weights, type: str, choose: Random) -> Weights:
    """A matrix with random values in that type, if its blocks divide the rows; anything else as it is."""
    count = math.prod(weights.dims)
    if len(weights.dims) != 2 or not 0 < count <= MOST_ELEMENTS or weights.dims[0] % BLOCK[type]:
        return weights
    rng = np.random.default_rng(choose.getrandbits(32))
    blocks = random_blocks(rng, type, count // BLOCK[type], weights.dims[0] ** -0.5)
    return replace(weights, type=NUMBERS[type], data=blocks.tobytes())
