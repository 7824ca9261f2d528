"""Rows of a source's tensors as floats, a piece at a time: what whoever encodes or measures them walks over.

    for matrix in matrices(tensor, new_type):
        for piece in pieces(matrix, data):
            large = read_rows(source, piece, x)

A piece has so few rows that they stay in a core's own cache. Nothing that is read is anything but a finite number.
Knows no file that is written.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.files.source import Source, SourceTensor
from localinfer.files.weights import Decoder
from localinfer.text import printable
from quant import FORMATS, ggml

PIECE = 1 << 18  # weights
LARGE = 65504.0  # the largest finite F16: what is larger may be too large for a format's scales

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix: a tensor's only one, or that of an expert. `type` is ggml's number of the type that it shall have."""

    tensor: SourceTensor
    number: int
    rows: int
    n: int
    type: int

    def index(self, row: int, column: int) -> list[int]:
        """A place in the matrix as an index of the tensor."""
        leading, row = self.tensor.shape[:-1], self.number * self.rows + row
        return [*(int(i) for i in np.unravel_index(row, leading)), column] if leading else [column]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """`count` rows of a matrix from row `first` on, and their bytes in the source."""

    matrix: Matrix
    first: int
    count: int
    data: Bytes

    @property
    def row(self) -> int:
        """Which row of the tensor the first one is."""
        return self.matrix.number * self.matrix.rows + self.first

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, self.matrix.n


def matrices(tensor: SourceTensor, type_number: int) -> Iterator[Matrix]:
    """The matrices of a tensor, which is to have that type; a vector is a matrix of one row."""
    *experts, rows, n = (1, *tensor.shape)
    for number in range(math.prod(experts)):
        yield Matrix(tensor, number, rows, n, type_number)


def pieces(matrix: Matrix, data: Bytes, least: int = 1) -> Iterator[Piece]:
    """All rows of a matrix, a multiple of `least` at a time; `data` are the bytes of its tensor."""
    row_bytes = ggml.nbytes(matrix.tensor.type, matrix.n)
    step = least * max(1, PIECE // matrix.n // least)
    for first in range(0, matrix.rows, step):
        count = min(step, matrix.rows - first)
        begin = (matrix.number * matrix.rows + first) * row_bytes
        yield Piece(matrix, first, count, data[begin : begin + count * row_bytes])


def load(source: Source, tensor: SourceTensor) -> Bytes:
    """The bytes of a tensor, as many as it needs."""
    data = tensor.load()
    if data.shape != (tensor.nbytes,):
        raise error_in(source, tensor, f"{len(data)} bytes were read, {tensor.nbytes} are needed")
    return data


def read_rows(source: Source, piece: Piece, x: Floats) -> bool:
    """Decode a piece into x, (count, n); whether one of its values is so large that a format's scales may not be.

    Raises LocalInferError for a value that is no finite number. Of types that cannot be decoded nothing is read.
    """
    if piece.matrix.tensor.type not in FORMATS:
        return False
    decoder_of(piece.matrix.tensor.type).rows(piece.data, x)
    return check_values(source, piece.matrix, range(piece.first, piece.first + piece.count), x)


def read_some(source: Source, matrix: Matrix, data: Bytes, numbers: Sequence[int]) -> Floats:
    """The rows of a matrix that have these numbers, (rows, n); `data` are the bytes of its tensor.

    Raises LocalInferError for a value that is no finite number.
    """
    x = np.empty((len(numbers), matrix.n), np.float32)
    size = matrix.rows * ggml.nbytes(matrix.tensor.type, matrix.n)
    inside = data[size * matrix.number : size * (matrix.number + 1)]
    decoder_of(matrix.tensor.type).chosen(inside, np.array(numbers, np.int32), x)
    check_values(source, matrix, numbers, x)
    return x


def check_values(source: Source, matrix: Matrix, numbers: Sequence[int], x: Floats) -> bool:
    """Raise LocalInferError unless the rows with these numbers are finite; whether one of their values is LARGE."""
    if x.min() >= -LARGE and x.max() <= LARGE:
        return False
    good = np.isfinite(x)
    if not good.all():
        row, column = divmod(int(good.argmin()), matrix.n)
        raise error_in(source, matrix.tensor, f"value {x[row, column]} at {matrix.index(numbers[row], column)}")
    return True


@cache
def decoder_of(type_number: int) -> Decoder:
    return Decoder(type_number)


def error_in(source: Source, tensor: SourceTensor, problem: str) -> LocalInferError:
    """The one line that says what is wrong with a tensor."""
    return LocalInferError(f"{printable(str(source.path))}: {printable(tensor.name)}: {problem}")
