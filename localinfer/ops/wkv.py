"""RWKV-7's time mixing (Peng et al., 2025): a matrix for each head, of which each key forgets at a rate of its own.

    S[j] = decay[j] * S[j] + key[j] * value - removed[j] * rate[j] * (removed . S),   y = receptance . S

`removed` is what a token looks for and takes away, of length 1. `prepare` makes of what matrices gave the numbers that
`recur_wkv` sums up, and `finish` normalises what it found and adds what the token itself knows. As in
`localinfer.ops.recur`, columns of a state do not know of each other, and a prompt's sums are those of an answer.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.ops.gate import exp, sigmoid
from localinfer.ops.layout import state_strip
from localinfer.ops.norm import centre, inverse_rms
from localinfer.ops.recur import words_of
from localinfer.ops.segments import SEGMENT_BYTES, segments_end
from quant.jit.threads import share
from quant.jit.vectors import Vector, f32x16, fma, inline, load, splat, sqrt, store, total

Body = Callable[..., None]
SLOWEST = -0.606531  # e^-1/2: a key keeps e^(this * sigmoid(w)) of itself, never less than 0.545
SHORTEST = 1e-12


def shift() -> Body:
    """The kernel y[t] = x[t - 1], and then the tail = x's last row; tail is [slot][n]. A segment's words are the slot
    in which it ends, and the one from which it begins. Threads share columns."""

    def body(tokens, x, n, segments, tail, y, part, parts, scratch):
        first, end = share(n, 16, part, parts)
        before = 0
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            count, own = load(int64, segment), tail + 4 * n * load(int64, segment + 8)
            past = tail + 4 * n * load(int64, segment + 16)
            for token in range(before, before + count):
                source = x + 4 * n * (token - 1) if token > before else past
                for i in range(first, end, 16):
                    store(y + 4 * (n * token + i), load(f32x16, source + 4 * i))
            last = x + 4 * n * (before + count - 1)
            for i in range(first, end if count else first, 16):
                store(own + 4 * i, load(f32x16, last + 4 * i))
            before += count

    return body


def lerp() -> Body:
    """The kernel y = x + weight * (other - x); a token's weights are `step` floats behind the last one's."""

    def body(tokens, x, other, weight, step, n, y, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for token in range(first, end):
            row, weights = 4 * n * token, weight + 4 * step * token
            for i in range(0, 4 * n, 64):
                value = load(f32x16, x + row + i)
                store(y + row + i, fma(load(f32x16, weights + i), load(f32x16, other + row + i) - value, value))

    return body


@inline
def length(x: int, weight: int, n: int) -> Any:
    """|x * weight|, or SHORTEST."""
    squares = splat(f32x16, float32(0.0))
    for i in range(0, 4 * n, 64):
        value = load(f32x16, x + i) * load(f32x16, weight + i)
        squares = fma(value, value, squares)
    return max(sqrt(total(squares)), float32(SHORTEST))


def prepare(size: int) -> Body:
    """The kernel that makes of `size` values of each head: w = decay; a = the rate at which a key is replaced, times
    `removed`; k = the key less its share that is replaced; and `removed`, the key times k_k with length 1."""

    def body(tokens, w, k, a, k_k, k_a, heads, removed, part, parts, scratch):
        first, end = share(load(int64, tokens) * heads, 1, part, parts)
        one, slowest = splat(f32x16, float32(1.0)), splat(f32x16, float32(SLOWEST))
        for item in range(first, end):
            head, place = 4 * size * (item % heads), 4 * size * item
            shrink = splat(f32x16, float32(1.0) / length(k + place, k_k + head, size))
            for i in range(0, 4 * size, 64):
                key, rate, at = load(f32x16, k + place + i), sigmoid(load(f32x16, a + place + i)), place + i
                gone = key * load(f32x16, k_k + head + i) * shrink
                store(removed + at, gone)
                store(a + at, gone * rate)
                store(k + at, key * fma(rate - one, load(f32x16, k_a + head + i), one))
                store(w + at, exp(slowest * sigmoid(load(f32x16, w + at))))

    return body


def recur_wkv(size: int) -> Body:
    """The kernel of the recurrence, of heads with `size` keys and values. `state` is [slot][head][strip][key][column];
    a segment's words are the slot in which it ends, and the one from which it begins."""
    strip = state_strip(size)
    strips, row_bytes, columns, (found, _) = size // strip, 4 * strip, Vector(float32, strip), words_of(size, strip)

    def body(tokens, r, w, k, v, a, removed, heads, segments, state, y, part, parts, scratch):
        state_bytes = 4 * size * size * heads
        for item in range(heads * strips * part // parts, heads * strips * (part + 1) // parts):
            head, column = item // strips, item % strips * strip
            own, before = state + size * row_bytes * item, 0
            for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
                count, s = load(int64, segment), own + state_bytes * load(int64, segment + 8)
                past = own + state_bytes * load(int64, segment + 16)
                for token in range(before, before + count):
                    at = 4 * size * (heads * token + head)
                    value, lost = load(columns, v + at + 4 * column), found(removed + at, past)
                    answer = splat(columns, float32(0.0))
                    for i in range(size):
                        key, place = at + 4 * i, row_bytes * i
                        decay, rate = splat(columns, load(float32, w + key)), splat(columns, load(float32, a + key))
                        kept = decay * load(columns, past + place)
                        learnt = fma(splat(columns, load(float32, k + key)), value, kept) - rate * lost
                        store(s + place, learnt)
                        answer = fma(splat(columns, load(float32, r + key)), learnt, answer)
                    store(y + at + 4 * column, answer)
                    past = s
                before += count

    return body


def finish(size: int) -> Body:
    """The kernel that normalises each head of y by mean and variance, with weights and biases of its own, and adds the
    token's own value, as much as its receptance, key and r_k say."""

    def body(tokens, r, k, v, r_k, weight, bias, heads, eps, y, part, parts, scratch):
        first, end = share(load(int64, tokens) * heads, 1, part, parts)
        for item in range(first, end):
            head, place = 4 * size * (item % heads), 4 * size * item
            products = splat(f32x16, float32(0.0))
            for i in range(0, 4 * size, 64):
                asked = load(f32x16, r + place + i) * load(f32x16, r_k + head + i)
                products = fma(asked, load(f32x16, k + place + i), products)
            centre(y + place, size, y + place)
            own, factor = splat(f32x16, total(products)), splat(f32x16, inverse_rms(y + place, size, eps))
            for i in range(0, 4 * size, 64):
                normed = load(f32x16, y + place + i) * factor
                shifted = fma(normed, load(f32x16, weight + head + i), load(f32x16, bias + head + i))
                store(y + place + i, fma(own, load(f32x16, v + place + i), shifted))

    return body
