"""Convolutions over rows that stand for the places of a map, row after row. Maps of one size share their tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.kernels.signatures import AVERAGE_ROWS, GATHER_ROWS, WEIGH_ROWS
from localinfer.multimodal.encoder_graph.bounds import check_row_numbers
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.row_order import Indices
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows

MAX_TAPS = 9  # of convolutions, on each side of a square
OUTSIDE = -1  # the number of a place outside of a map
Size = tuple[int, int]
Padding = Callable[[int, int, int], tuple[int, int]]  # of a length, the taps on a side and the stride


class FeatureMap(NamedTuple):
    """The activations at all places of a map, and its height and width."""

    x: Buffer
    size: Size


def padding_at_the_end(length: int, width: int, stride: int) -> tuple[int, int]:
    """Return how many places are added before and after a length so that every `stride`-th place has a result; an odd
    number of them is more at the end ("same" padding of TensorFlow)."""
    total = max(0, (-(-length // stride) - 1) * stride + width - length)
    return total // 2, total - total // 2


def centered_padding(length: int, width: int, stride: int) -> tuple[int, int]:  # noqa: ARG001 (one signature for all)
    """Return how many places are added before and after a length so that every `stride`-th place is in the middle of
    what its result is made of."""
    return width // 2, width // 2


class FeatureMaps:
    """Records operations on maps. Convolutions are padded with zeros, as many as `padding` returns."""

    def __init__(self, g: EncoderBuilder, padding: Padding = padding_at_the_end) -> None:
        self._g, self._padding = g, padding
        self._rows: dict[tuple[int, bool], Rows] = {}
        self._tables: dict[tuple[Size, int, int, bool], Region] = {}

    def rows(self, count: int, *, with_zero_row: bool = False) -> Rows:
        """Return a number of rows. Buffers with the same numbers can take each other's place, but not that of a buffer
        `with_zero_row`, whose last row nothing writes."""
        key = count, with_zero_row
        if key not in self._rows:
            self._rows[key] = self._g.rows(count)
        return self._rows[key]

    def buffer(self, n: int, size: Size) -> Buffer:
        return self._g.graph.buffer(n, self.rows(prod(size)))

    def n_out(self, name: str) -> int:
        """Return the number of channels that a convolution makes."""
        return self._shape(name)[0]

    def pointwise(self, x: Buffer, name: str, *, out: Buffer | None = None) -> Buffer:
        """Return the convolution of single places: a matrix, whose shape in the file may end in ones."""
        n_out, *rest = self._shape(name)
        ones = [1] * (len(rest) - 1)
        weight = replace(self._g.tensors.tensor(name, n_out, x.n, *ones), shape=(n_out, x.n))
        return self._g.product(x, weight, out=out or self._g.graph.buffer(n_out, x.rows))

    def convolve(self, of: FeatureMap, name: str, stride: int) -> FeatureMap:
        """Return the convolution of squares of places."""
        n_out, width, n = self._shape(name)[0], self._width(name), of.x.n
        taps = self._g.tensors.columns_by_patch(name, n_out, n, width)
        size, count = strided(of.size, stride), prod(of.size)
        padded = with_zero_rows(self._g, of.x, rows=self.rows(count + 1, with_zero_row=True))
        gathered = self.buffer(width**2 * n, size)
        table = self._table(of.size, width, stride, zero_row=True)
        self._gather(padded, table, gathered, self.rows(width**2 * prod(size)), n)
        return FeatureMap(self._g.product(gathered, taps, out=self.buffer(n_out, size)), size)

    def depthwise(self, of: FeatureMap, name: str, stride: int) -> FeatureMap:
        """Return the convolution of squares of places, channel by channel."""
        width, size = self._width(name), strided(of.size, stride)
        y, weight = self.buffer(of.x.n, size), self._g.tensors.depthwise_by_tap(name, of.x.n, width)
        self._g.graph.op(
            name, WEIGH_ROWS, y.rows, chunks=(1, 8), x=of.x, numbers=self._table(of.size, width, stride), weight=weight,
            bias=0, count=width**2, n=y.n, y=y,
        )  # fmt: skip
        self._g.point(y, name.removesuffix(".weight"))
        return FeatureMap(y, size)

    def enlarge(self, of: FeatureMap, size: Size) -> Buffer:
        """Return a map with this size, whose places have the values of the nearest places."""
        numbers = np.arange(prod(of.size)).reshape(of.size)
        for axis in (0, 1):
            numbers = np.take(numbers, np.arange(size[axis]) * of.size[axis] // size[axis], axis)
        flat = np.ascontiguousarray(numbers.reshape(-1), np.int32)
        check_row_numbers(self._g.f, of.x, flat)
        y = self.buffer(of.x.n, size)
        self._gather(of.x, self._g.constants.region(flat), y, y.rows)
        return y

    def average(self, of: FeatureMap, size: Size) -> Buffer:
        """Return a map with this size, which must divide that of the other one: the means of its rectangles."""
        rows, columns = (old // new for old, new in zip(of.size, size, strict=True))
        numbers = np.arange(prod(of.size), dtype=np.int32).reshape(size[0], rows, size[1], columns)
        flat = np.ascontiguousarray(numbers.transpose(0, 2, 1, 3).reshape(-1, rows * columns))
        check_row_numbers(self._g.f, of.x, flat)
        y, table = self.buffer(of.x.n, size), self._g.constants.region(flat)
        self._g.graph.op(
            "average", AVERAGE_ROWS, y.rows, x=of.x, numbers=table, count=rows * columns, n=y.n, y=y
        )  # fmt: skip
        return y

    def vector(self, name: str, n: int) -> Tensor:
        """Return n float32 values, whose shape in the file may have ones around n."""
        shape = self._shape(name)
        if prod(shape) != n:
            raise self._g.f.error(f"tensor {name}", f"has shape {list(shape)}; it must have {n} values")
        return replace(self._g.tensors.floats(name, *shape), shape=(n,))

    def _gather(self, x: Buffer, numbers: Region, y: Buffer, rows: Rows, n: int = 0) -> None:
        self._g.graph.op("gather", GATHER_ROWS, rows, x=x, numbers=numbers, n=n or x.n, y=y)

    def _shape(self, name: str) -> Sequence[int]:
        tensor = self._g.f.tensors.get(name)
        if tensor is None:
            raise self._g.f.error(f"tensor {name}", "is missing")
        return tensor.shape

    def _width(self, name: str) -> int:
        """Return the number of taps on each side of a convolution, whose weights have four dimensions."""
        shape = self._shape(name)
        if len(shape) != 4 or shape[3] > MAX_TAPS:
            what = f"has shape {list(shape)}; a convolution has four dimensions, and at most {MAX_TAPS} taps on a side"
            raise self._g.f.error(f"tensor {name}", what)
        return shape[3]

    def _table(self, size: Size, width: int, stride: int, *, zero_row: bool = False) -> Region:
        """Return the numbers of the places that each result is made of. Places outside are OUTSIDE, or the row behind
        the last place."""
        key = size, width, stride, zero_row
        if key not in self._tables:
            numbers = squares(size, width, stride, self._padding)
            numbers = np.where(numbers < 0, prod(size), numbers) if zero_row else numbers
            self._tables[key] = self._g.constants.region(numbers)
        return self._tables[key]


def strided(size: Size, stride: int) -> Size:
    """Return the size of a map with every `stride`-th place in both directions."""
    return -(-size[0] // stride), -(-size[1] // stride)


def squares(size: Size, width: int, stride: int, padding: Padding) -> Indices:
    """Return the places that each result of a convolution reads, (results, width * width), OUTSIDE for those that the
    map does not have."""
    numbers = np.arange(prod(size), dtype=np.int32).reshape(size)
    padded = np.pad(numbers, [padding(length, width, stride) for length in size], constant_values=OUTSIDE)
    found = sliding_window_view(padded, (width, width))[::stride, ::stride]
    return np.ascontiguousarray(found.reshape(-1, width * width))
