"""Files whose weights are random integers times powers of two: the integers are generated when a file is read.

    data = generated_weights.pack(content)    # of a GGUF file, which is smaller without the integers
    content = generated_weights.unpack(data)  # the same bytes

The scripts that make the files draw the integers from -7 to 7 of all parameters of a model, one after the other, from
torch's generator (`torch.randint` with SEED), which is the Mersenne Twister that numpy has as well. `pack` finds the
tensors of the file among them, also where the converter has changed the order of a tensor's axes or has joined several
tensors. The values of all other tensors are stored.
"""

import json
import lzma
import tempfile
from collections.abc import Iterator
from itertools import permutations
from math import prod
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

SEED, LARGEST = 20, 7
N_SEARCHED = 6_000_000  # more integers than any of the models has parameters
MIN_VALUES = 8  # that are certain to be found only where they come from
EXPONENTS = range(13)
FLOATS = (np.dtype("<f4"), np.dtype("<f2"))
JOINED = (1, 3, 2)  # tensors that the converter may have joined
Floats = NDArray[np.floating]


class Piece(NamedTuple):
    """Values of a file that begin at the byte `at` and have this type of numpy: `added` + 2^-`exponent` times the
    integers from `first` on, as an array of this shape whose axes are then in another order."""

    at: int
    type: str
    first: int
    shape: list[int]
    axes: list[int]
    exponent: int
    added: int

    def values(self, integers: NDArray[np.int8]) -> bytes:
        """Return the bytes of the values."""
        own = integers[self.first : self.first + prod(self.shape)].reshape(self.shape).transpose(self.axes)
        return (own * np.float32(2.0**-self.exponent) + np.float32(self.added)).astype(self.type).tobytes()


def integers_of(seed: int, count: int) -> NDArray[np.int8]:
    """Return the first integers that torch draws, int8 (count,)."""
    drawn = np.frombuffer(np.random.RandomState(seed).bytes(4 * count), "<u4")
    return (drawn % np.uint32(2 * LARGEST + 1)).astype(np.int8) - np.int8(LARGEST)


def unpack(data: bytes) -> bytes:
    """Return the file."""
    head, _, content = lzma.decompress(data).partition(b"\n")
    pieces, file = [Piece(*each) for each in json.loads(head)], bytearray(content)
    integers = integers_of(SEED, max((piece.first + prod(piece.shape) for piece in pieces), default=0))
    for piece in pieces:
        values = piece.values(integers)
        file[piece.at : piece.at + len(values)] = values
    return bytes(file)


def pack(content: bytes) -> bytes:
    """Return the compressed file without the values that can be generated."""
    integers, file, pieces = integers_of(SEED, N_SEARCHED), bytearray(content), []
    for at, values in float_tensors(content):
        for count in JOINED:
            if len(values) % count == 0 and (found := pieces_of(at, np.split(values, count), integers)):
                pieces.extend(found)
                file[at : at + values.nbytes] = bytes(values.nbytes)
                break
    data = lzma.compress(json.dumps(pieces, separators=(",", ":")).encode() + b"\n" + file, preset=9)
    assert unpack(data) == content
    return data


def float_tensors(content: bytes) -> Iterator[tuple[int, Floats]]:
    """Yield the position and the values of each tensor in F32 or F16."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.gguf")
        path.write_bytes(content)
        for tensor in gguf.GGUFReader(path).tensors:
            if tensor.data.dtype in FLOATS:
                yield int(tensor.data_offset), np.array(tensor.data)


def pieces_of(at: int, parts: list[Floats], integers: NDArray[np.int8]) -> list[Piece]:
    """Return the pieces of tensors that follow each other in a file, or nothing if one of them is not found."""
    found = []
    for part in parts:
        piece = find(at, part, integers)
        if piece is None:
            return []
        found.append(piece)
        at += part.nbytes
    return found


def find(at: int, values: Floats, integers: NDArray[np.int8]) -> Piece | None:
    """Return a tensor as a piece, or None if its values are not among the integers."""
    if values.size < MIN_VALUES:
        return None
    drawn = integers.tobytes()
    for added in (0, 1):
        for exponent in EXPONENTS:
            own = (values.astype(np.float32) - np.float32(added)) * np.float32(2.0**exponent)
            if (own != np.rint(own)).any() or np.abs(own).max() > LARGEST:
                continue
            for axes in permutations(range(values.ndim)):
                other = own.astype(np.int8).transpose(axes)
                first = drawn.find(other.tobytes())
                back = np.argsort(axes).tolist()
                piece = Piece(at, values.dtype.str, first, list(other.shape), back, exponent, added)
                if first >= 0 and piece.values(integers) == values.tobytes():
                    return piece
    return None
