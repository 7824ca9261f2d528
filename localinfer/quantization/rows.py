"""Iteration over the rows of a source's tensors as float32, one cache-sized slice at a time.

    for matrix in matrices(tensor, new_type):
        for rows in row_slices(matrix, data):
            large = read_rows(source, rows, x)

All values that are read are checked to be finite.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.dequantize import Decoder
from localinfer.gguf.source import Source, SourceTensor
from quant import FORMATS, ggml

SLICE_WEIGHTS = 1 << 18  # weights
LARGEST_F16 = 65504.0  # the largest finite F16; larger weights may exceed the range of a format's scales

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix: the only one of a tensor, or that of one expert. `type` is the ggml number of its target type."""

    tensor: SourceTensor
    number: int
    rows: int
    n: int
    type: int

    def index(self, row: int, column: int) -> list[int]:
        """Return the index into the tensor of an element of the matrix."""
        leading, row = self.tensor.shape[:-1], self.number * self.rows + row
        return [*(int(i) for i in np.unravel_index(row, leading)), column] if leading else [column]


@dataclass(frozen=True, slots=True, eq=False)
class RowSlice:
    """`count` rows of a matrix from row `first` on, and their bytes in the source."""

    matrix: Matrix
    first: int
    count: int
    data: Bytes

    @property
    def row(self) -> int:
        """The index of the first row in the tensor."""
        return self.matrix.number * self.matrix.rows + self.first

    @property
    def numbers(self) -> range:
        """The numbers of the rows in the matrix."""
        return range(self.first, self.first + self.count)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.count, self.matrix.n


def matrices(tensor: SourceTensor, type_number: int) -> Iterator[Matrix]:
    """Yield the matrices of a tensor with this target type; a vector is a matrix of one row."""
    *experts, rows, n = (1, *tensor.shape)
    for number in range(math.prod(experts)):
        yield Matrix(tensor, number, rows, n, type_number)


def row_slices(matrix: Matrix, data: Bytes, least: int = 1) -> Iterator[RowSlice]:
    """Yield slices of all rows of a matrix, each a multiple of `least` rows; `data` are the bytes of its tensor."""
    row_bytes = ggml.nbytes(matrix.tensor.type, [matrix.n])
    step = least * max(1, SLICE_WEIGHTS // matrix.n // least)
    for first in range(0, matrix.rows, step):
        count = min(step, matrix.rows - first)
        begin = (matrix.number * matrix.rows + first) * row_bytes
        yield RowSlice(matrix, first, count, data[begin : begin + count * row_bytes])


def load_bytes(source: Source, tensor: SourceTensor) -> Bytes:
    """Return the bytes of a tensor. Raises LocalInferError if there are too few or too many."""
    data = tensor.load()
    if data.shape != (tensor.nbytes,):
        raise tensor_error(source, tensor, f"{len(data)} bytes were read, {tensor.nbytes} are needed")
    return data


def read_rows(source: Source, row_slice: RowSlice, x: Floats) -> bool:
    """Decode a slice into x, (count, n). Return whether a value may exceed the range of a format's scales.

    Does nothing for types that cannot be decoded. Raises LocalInferError for a value that is not finite.
    """
    if row_slice.matrix.tensor.type not in FORMATS:
        return False
    get_decoder(row_slice.matrix.tensor.type).rows(row_slice.data, x)
    return check_values(source, row_slice.matrix, row_slice.numbers, x)


def read_selected_rows(source: Source, matrix: Matrix, data: Bytes, numbers: Sequence[int]) -> Floats:
    """Return the rows of a matrix with these numbers, (rows, n); `data` are the bytes of its tensor.

    Raises LocalInferError for a value that is not finite.
    """
    x = np.empty((len(numbers), matrix.n), np.float32)
    size = matrix.rows * ggml.nbytes(matrix.tensor.type, [matrix.n])
    inside = data[size * matrix.number : size * (matrix.number + 1)]
    get_decoder(matrix.tensor.type).selected_rows(inside, np.array(numbers, np.int32), x)
    check_values(source, matrix, numbers, x)
    return x


def check_values(source: Source, matrix: Matrix, numbers: Sequence[int], x: Floats) -> bool:
    """Raise LocalInferError unless all values are finite. Return whether one exceeds LARGEST_F16."""
    if x.min() >= -LARGEST_F16 and x.max() <= LARGEST_F16:
        return False
    good = np.isfinite(x)
    if not good.all():
        row, column = divmod(int(good.argmin()), matrix.n)
        raise tensor_error(source, matrix.tensor, f"value {x[row, column]} at {matrix.index(numbers[row], column)}")
    return True


@cache
def get_decoder(type_number: int) -> Decoder:
    """Return the decoder of a type."""
    return Decoder(type_number)


def tensor_error(source: Source, tensor: SourceTensor, problem: str) -> LocalInferError:
    """Return an error about a tensor of the source."""
    return LocalInferError(f"{printable(str(source.path))}: {printable(tensor.name)}: {problem}")
