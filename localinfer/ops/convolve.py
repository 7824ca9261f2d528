"""Short convolutions over time: each column is a weighted sum of its own last few values."""

from collections.abc import Callable
from typing import Any

from numba import int64

from localinfer.ops.gate import ACTIVATIONS
from localinfer.ops.layout import STRIP
from localinfer.ops.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import f32x16, fma, gather, inline, load, splat, store

Body = Callable[..., None]


@inline
def row(x: int, tail: int, width: int, stride: int, token: int) -> int:
    """Where a token's values are: those before the batch are in the tail, the oldest first."""
    return x + stride * token if token >= 0 else tail + stride * (token + width - 1)


@inline
def unfold(weight: int, width: int, columns: int, place: int) -> None:
    """The weights of some columns, [column][age], as [age][column] for columns up to a whole strip."""
    for column in range(0, columns, 16):
        for age in range(width):
            taps = gather(f32x16, weight + 4 * (width * column + age), 4 * width)
            store(place + 4 * (STRIP * age + column), taps)


def convolve(activation: str) -> Body:
    """The kernel y[t] = act(bias + sum of weight[age] * x[t - width + 1 + age]), and then the tail = x's last width - 1
    rows; weight is [n][width], tail [slot][width - 1][n]. Bias may be 0. Threads share strips of columns. A segment's
    words are the slot in which it ends, and the one from which it begins."""
    act: Any = ACTIVATIONS[activation]

    def body(tokens, x, weight, bias, width, n, segments, tail, y, part, parts, scratch):
        strips, stride = (n + STRIP - 1) // STRIP, 4 * n
        for strip in range(strips * part // parts, strips * (part + 1) // parts):
            first, end, before = STRIP * strip, min(STRIP * (strip + 1), n), 0
            unfold(weight + 4 * width * first, width, end - first, scratch)
            for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
                count, own = load(int64, segment), tail + stride * (width - 1) * load(int64, segment + 8)
                past = tail + stride * (width - 1) * load(int64, segment + 16)
                rows, place = x + stride * before, y + stride * before
                for token in range(count):
                    for i in range(first, end, 16):
                        s = load(f32x16, bias + 4 * i) if bias else splat(f32x16, 0.0)
                        for age in range(width):
                            value = load(f32x16, row(rows, past, width, stride, token - width + 1 + age) + 4 * i)
                            s = fma(load(f32x16, scratch + 4 * (STRIP * age + i - first)), value, s)
                        store(place + stride * token + 4 * i, act(s))
                for age in range(width - 1):
                    source = row(rows, past, width, stride, count - width + 1 + age)
                    for i in range(first, end, 16):
                        store(own + stride * age + 4 * i, load(f32x16, source + 4 * i))
                before += count

    return body
