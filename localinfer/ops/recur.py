"""Recurrent heads: a matrix for each, which forgets, learns a key and its value, and is asked by a query.

    S = decay * S + key (x) d,   y = query . S,   decay = exp(a * softplus(step + bias))

By the rule "delta" (Yang et al., 2024: gated delta net) d is what the value adds to what the key finds already,
sigmoid(rate) * (value - decay * key . S), and keys and queries have length 1, queries then key^-1/2; by the rule "add"
(Dao and Gu, 2024: Mamba 2) it is softplus(step + bias) * value, and y has skip * value added.

The columns of a state do not know of each other: threads share strips of them, and each takes its strip through all
tokens of a batch while that stays in the nearest cache. So a prompt's sums are those of an answer, token by token.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.ops.gate import exp, logistic_product
from localinfer.ops.layout import STATE_STRIP
from localinfer.ops.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import absolute, f32x16, fma, inline, load, maximum, splat, sqrt, store, total

Body = Callable[..., None]
LENGTH_EPS = 1e-6  # of the squared length of keys and queries


@inline
def softplus(x: Any) -> Any:
    """log(1 + e**x) = max(x, 0) + log1p(u), u = e**-|x|; log1p(u) = 2 atanh(s), s = u / (2 + u) <= 1/3."""
    zero, one = splat(f32x16, float32(0.0)), splat(f32x16, float32(1.0))
    u = exp(zero - absolute(x))
    s = u / (u + one + one)
    square = s * s
    p = splat(f32x16, 1.0 / 15)
    p = fma(p, square, splat(f32x16, 1.0 / 13))
    p = fma(p, square, splat(f32x16, 1.0 / 11))
    p = fma(p, square, splat(f32x16, 1.0 / 9))
    p = fma(p, square, splat(f32x16, 1.0 / 7))
    p = fma(p, square, splat(f32x16, 1.0 / 5))
    p = fma(p, square, splat(f32x16, 1.0 / 3))
    p = fma(p, square, one)
    return maximum(x, zero) + (s + s) * p


@inline
def every(address: int) -> Any:
    """A number in all lanes."""
    return splat(f32x16, load(float32, address))


@inline
def inverse_length(x: int, n: int) -> Any:
    """1 / |x| of n floats, a multiple of 16."""
    squares = splat(f32x16, float32(0.0))
    for i in range(0, n, 16):
        value = load(f32x16, x + 4 * i)
        squares = fma(value, value, squares)
    return float32(1.0) / sqrt(total(squares) + float32(LENGTH_EPS))


@inline
def found(key: int, n: int, state: int, column: int) -> Any:
    """key . S of sixteen columns."""
    even, odd = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    for i in range(0, n, 2):
        place = state + 4 * (STATE_STRIP * i + column)
        even = fma(every(key + 4 * i), load(f32x16, place), even)
        odd = fma(every(key + 4 * i + 4), load(f32x16, place + 4 * STATE_STRIP), odd)
    return even + odd


@inline
def learn(
    key: int, query: int, n: int, decay: Any, d0: Any, d1: Any, past: int, state: int, y: int, factor: Any
) -> None:
    """S = decay * past + key (x) d, and y = factor * query . S, for a strip."""
    y0, y1 = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    for i in range(n):
        k, q, row = every(key + 4 * i), every(query + 4 * i), 4 * STATE_STRIP * i
        s0 = fma(k, d0, decay * load(f32x16, past + row))
        s1 = fma(k, d1, decay * load(f32x16, past + row + 64))
        store(state + row, s0)
        store(state + row + 64, s1)
        y0, y1 = fma(q, s0, y0), fma(q, s1, y1)
    store(y, factor * y0)
    store(y + 64, factor * y1)


def recur_delta(key: int, value: int, share: int) -> Body:
    """The kernel of the delta rule; x has the queries, keys and values of a token in rows of `stride` bytes, `groups`
    heads of queries and keys and `heads` of values: `share` neighbours have the same key, the next ones the next, in
    turns. `state` is [slot][head][strip][key][column]; a segment's words are the slot in
    which it ends, and the one from which it begins.
    """
    strips, shrink = value // STATE_STRIP, float(key) ** -0.5

    def body(tokens, x, stride, heads, groups, step, rate, a, bias, skip, segments, state, y, part, parts, scratch):
        one, state_bytes = splat(f32x16, float32(1.0)), 4 * key * STATE_STRIP * heads * strips
        for item in range(heads * strips * part // parts, heads * strips * (part + 1) // parts):
            head, column = item // strips, item % strips * STATE_STRIP
            own, before = state + 4 * key * STATE_STRIP * item, 0
            for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
                count, s = load(int64, segment), own + state_bytes * load(int64, segment + 8)
                past = own + state_bytes * load(int64, segment + 16)
                for token in range(before, before + count):
                    q = x + stride * token + 4 * key * (head // share % groups)
                    k, at = q + 4 * key * groups, 4 * (heads * token + head)
                    v = x + stride * token + 8 * key * groups + 4 * (value * head + column)
                    decay = exp(every(a + 4 * head) * softplus(every(step + at) + every(bias + 4 * head)))
                    beta = logistic_product(one, every(rate + at))
                    k_scale = splat(f32x16, inverse_length(k, key))
                    q_scale = splat(f32x16, inverse_length(q, key) * float32(shrink))
                    d0 = (load(f32x16, v) - decay * k_scale * found(k, key, past, 0)) * (beta * k_scale)
                    d1 = (load(f32x16, v + 64) - decay * k_scale * found(k, key, past, 16)) * (beta * k_scale)
                    place = y + 4 * (value * (heads * token + head) + column)
                    learn(k, q, key, decay, d0, d1, past, s, place, q_scale)
                    past = s
                before += count

    return body


def recur_add(key: int, value: int, share: int) -> Body:
    """The kernel that adds; x has the values, keys and queries of a token, and rate is not used. Otherwise as
    `recur_delta`."""
    strips = value // STATE_STRIP

    def body(tokens, x, stride, heads, groups, step, rate, a, bias, skip, segments, state, y, part, parts, scratch):
        one, state_bytes = splat(f32x16, float32(1.0)), 4 * key * STATE_STRIP * heads * strips
        for item in range(heads * strips * part // parts, heads * strips * (part + 1) // parts):
            head, column = item // strips, item % strips * STATE_STRIP
            own, before = state + 4 * key * STATE_STRIP * item, 0
            for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
                count, s = load(int64, segment), own + state_bytes * load(int64, segment + 8)
                past = own + state_bytes * load(int64, segment + 16)
                for token in range(before, before + count):
                    row = x + stride * token
                    v = row + 4 * (value * head + column)
                    k = row + 4 * (value * heads + key * (head // share % groups))
                    dt = softplus(every(step + 4 * (heads * token + head)) + every(bias + 4 * head))
                    v0, v1, decay = load(f32x16, v), load(f32x16, v + 64), exp(every(a + 4 * head) * dt)
                    place = y + 4 * (value * (heads * token + head) + column)
                    learn(k, k + 4 * key * groups, key, decay, dt * v0, dt * v1, past, s, place, one)
                    store(place, fma(every(skip + 4 * head), v0, load(f32x16, place)))
                    store(place + 64, fma(every(skip + 4 * head), v1, load(f32x16, place + 64)))
                    past = s
                before += count

    return body


def halves() -> Body:
    """The kernel that parts each head of x, [token][head][first, second], into two rows of heads."""

    def body(tokens, x, size, heads, first, second, part, parts, scratch):
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            source, place = x + 8 * size * item, 4 * size * item
            for i in range(0, 4 * (size // 16 * 16), 64):
                store(first + place + i, load(f32x16, source + i))
                store(second + place + i, load(f32x16, source + 4 * size + i))
            for i in range(4 * (size // 16 * 16), 4 * size, 4):
                store(first + place + i, load(float32, source + i))
                store(second + place + i, load(float32, source + 4 * size + i))

    return body
