"""Causal depthwise convolutions over time: each column is a weighted sum of its own last few values."""

from collections.abc import Callable
from typing import Any

from numba import int64

from localinfer.kernels.activations import ACTIVATIONS
from localinfer.kernels.layout import CONVOLUTION_STRIP
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, fma, gather, inline, load, splat, store

Body = Callable[..., None]


@inline
def input_row(x: int, tail: int, before: int, stride: int, token: int) -> int:
    """Return the address of a token's values. Those of the `before` tokens before the batch are in the tail, the oldest
    first."""
    return x + stride * token if token >= 0 else tail + stride * (token + before)


@inline
def transpose_weights(weight: int, width: int, columns: int, out: int) -> None:
    """Transpose the weights of some columns from [column][age] to [age][column], padded to a whole strip."""
    for column in range(0, columns, 16):
        for age in range(width):
            taps = gather(f32x16, weight + 4 * (width * column + age), 4 * width)
            store(out + 4 * (CONVOLUTION_STRIP * age + column), taps)


def convolve(activation: str) -> Body:
    """Make the kernel y[t] = act(bias + sum of weight[age] * x[t - dilation * (width - 1 - age)]).

    It then stores the last dilation * (width - 1) rows of x in the tail, [slot][row][n]. weight is [n][width], bias
    may be 0. Threads divide the columns into strips. A segment's two words are the slot to write and the slot to read.
    """
    act: Any = ACTIVATIONS[activation]

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        width, before_batch = args.width, args.dilation * (args.width - 1)
        strips, stride = (args.n + CONVOLUTION_STRIP - 1) // CONVOLUTION_STRIP, 4 * args.n
        for strip in range(strips * chunk_index // n_chunks, strips * (chunk_index + 1) // n_chunks):
            first, end, before = CONVOLUTION_STRIP * strip, min(CONVOLUTION_STRIP * (strip + 1), args.n), 0
            transpose_weights(args.weight + 4 * width * first, width, end - first, scratch)
            for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
                count, new_tail = load(int64, segment), args.tail + stride * before_batch * load(int64, segment + 8)
                old_tail = args.tail + stride * before_batch * load(int64, segment + 16)
                rows, out = args.x + stride * before, args.y + stride * before
                for token in range(count):
                    for i in range(first, end, 16):
                        s = load(f32x16, args.bias + 4 * i) if args.bias else splat(f32x16, 0.0)
                        for age in range(width):
                            source = token - args.dilation * (width - 1 - age)
                            value = load(f32x16, input_row(rows, old_tail, before_batch, stride, source) + 4 * i)
                            s = fma(load(f32x16, scratch + 4 * (CONVOLUTION_STRIP * age + i - first)), value, s)
                        store(out + stride * token + 4 * i, act(s))
                for age in range(before_batch):
                    source = input_row(rows, old_tail, before_batch, stride, count - before_batch + age)
                    for i in range(first, end, 16):
                        store(new_tail + stride * age + 4 * i, load(f32x16, source + 4 * i))
                before += count

    return body
