"""Depthwise convolutions of rows: each column of an output row is a weighted sum of the same column of a few rows."""

from typing import NamedTuple

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.kernels.signatures import WEIGH_ROWS
from localinfer.multimodal.encoder_graph.bounds import check_taps
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.row_order import Indices

ZERO_ROW = -1  # the number of a row of zeros


class Taps(NamedTuple):
    """The rows that each output row of a convolution reads: `numbers`, int32 (rows, width), of `n_inputs` rows."""

    numbers: Region
    rows: Rows
    width: int
    n_inputs: int


def make_taps(g: EncoderBuilder, numbers: Indices, n_inputs: int) -> Taps:
    """Return the table `numbers`, which layers may share, in memory of the graph. Raises LocalInferError for numbers of
    rows that the input does not have."""
    check_taps(g.f, numbers, n_inputs)
    return Taps(g.constants.region(numbers), g.rows(len(numbers)), numbers.shape[1], n_inputs)


def convolve(g: EncoderBuilder, x: Buffer, weight: Tensor, bias: Tensor | None, taps: Taps) -> Buffer:
    """Return the convolution of x with `weight`, float32 (width, n)."""
    assert weight.shape == (taps.width, x.n)
    assert taps.n_inputs <= x.rows.capacity
    y = g.graph.buffer(x.n, taps.rows)
    g.graph.op(
        weight.name, WEIGH_ROWS, y.rows, chunks=(1, 8), x=x, numbers=taps.numbers, weight=weight, bias=bias or 0,
        count=taps.width, n=x.n, y=y,
    )  # fmt: skip
    g.point(y, weight.name.removesuffix(".weight"))
    return y


def over_time(n_rows: int, before: int, after: int) -> Indices:
    """Return the rows that each of consecutive rows reads, (rows, before + 1 + after); those that are missing are
    zeros."""
    numbers = np.arange(n_rows)[:, None] + np.arange(-before, after + 1)
    return np.where((numbers >= 0) & (numbers < n_rows), numbers, ZERO_ROW).astype(np.int32)


def over_squares(times: int, bands: int, before: int = 1) -> Indices:
    """Return the 3 x 3 rows that each row of a convolution of stride 2 over time and frequency reads, in the order of
    times, then of bands. Input and output rows are in the same order. `before` of the 3 times precede that of a row."""
    padding = (before, 2 - before), (1, 1)
    numbers = np.pad(np.arange(times * bands).reshape(times, bands), padding, constant_values=ZERO_ROW)
    found = np.lib.stride_tricks.sliding_window_view(numbers, (3, 3))[::2, ::2]
    return found.reshape(-1, 9).astype(np.int32)
