"""Compression of runs of positions (DeepSeek, 2026: compressed attention): each run becomes a mean of its values.

    y[column] = sum of values[position][column] * weight[position][column]

The weights of a column are the softmax of its scores over the run, or over two runs if these overlap: the values and
scores then have two parts of n columns, the first one of the run before, the second one of the run itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import float32, int32, int64

from localinfer.kernels.exponentials import exp
from localinfer.kernels.recurrent.convolution import input_row
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, fma, inline, load, maximum, splat, store

Body = Callable[..., None]


class Rows(NamedTuple):
    """Rows of a segment, and those of the tokens before it."""

    x: int  # address of the first row
    tail: int  # address of the `before` rows before, the oldest first
    before: int
    stride: int  # bytes of a row


@inline
def row_of(rows: Rows, token: int) -> int:
    """Return the address of the row of a token of the segment, negative for those before it."""
    return input_row(rows.x, rows.tail, rows.before, rows.stride, token)


@inline
def score_of(scores: Rows, token: int, ape: int, column: int) -> Any:
    """Return 16 scores of a token, with what is added at its position of the run."""
    return load(f32x16, row_of(scores, token) + 4 * column) + load(f32x16, ape + 4 * column)


@inline
def store_tail(rows: Rows, count: int, tail: int, column: int) -> None:
    """Store 16 columns of the last rows of a segment of `count` tokens."""
    for age in range(rows.before):
        source = row_of(rows, count - rows.before + age)
        store(tail + rows.stride * age + 4 * column, load(f32x16, source + 4 * column))


def compress() -> Body:
    """Make the kernel that writes the mean of a run to the row of its last position in y, and 0 to the other rows.

    `parts` is 2 if runs overlap, else 1. Values and scores are [token][part][n], ape is [position of the run][part][n].
    The tails have the rows of the last parts * run - 1 tokens, [slot][token][part][n]. A segment's two words are the
    slot to write and the slot to read. Threads divide the columns.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n, run, parts = args.n, args.run, args.parts
        stride, width, strips, first = 4 * n * parts, run * parts, n // 16, 0
        begin, end = 16 * (strips * chunk_index // n_chunks), 16 * (strips * (chunk_index + 1) // n_chunks)
        slot_bytes = stride * (width - 1)
        for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
            count, new, old = load(int64, segment), load(int64, segment + 8), load(int64, segment + 16)
            values = Rows(args.values + stride * first, args.values_tail + slot_bytes * old, width - 1, stride)
            scores = Rows(args.scores + stride * first, args.scores_tail + slot_bytes * old, width - 1, stride)
            for column in range(begin, end, 16):
                for token in range(count):
                    position = int64(load(int32, args.positions + 4 * (first + token)))
                    out = args.y + 4 * (n * (first + token) + column)
                    total, weights = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
                    if (position + 1) % run == 0:
                        oldest = max(0, width - 1 - position)  # the first run has none before
                        top = splat(f32x16, float32(-3e38))
                        for i in range(oldest, width):
                            at, ape = n * (i // run) + column, args.ape + stride * (i % run)
                            top = maximum(top, score_of(scores, token - width + 1 + i, ape, at))
                        for i in range(oldest, width):
                            at, ape = n * (i // run) + column, args.ape + stride * (i % run)
                            weight = exp(score_of(scores, token - width + 1 + i, ape, at) - top)
                            value = load(f32x16, row_of(values, token - width + 1 + i) + 4 * at)
                            total, weights = fma(weight, value, total), weights + weight
                        total = total / weights
                    store(out, total)
                for part in range(parts):
                    store_tail(values, count, args.values_tail + slot_bytes * new, n * part + column)
                    store_tail(scores, count, args.scores_tail + slot_bytes * new, n * part + column)
            first += count

    return body
