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
from localinfer.ops.layout import state_strip
from localinfer.ops.segments import SEGMENT_BYTES, segments_end
from quant.jit.vectors import Vector, absolute, extract, f32x16, fma, inline, load, maximum, splat, sqrt, store, total

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
def number(v: Any) -> Any:
    """The one that is in all lanes."""
    return extract(v, 0)


def words_of(key: int, strip: int) -> tuple[Any, Any]:
    """The words found(k, past), which is key . past, and learn(k, q, decay, d, past, state), which is query . S with
    S = decay * past + key (x) d, of a strip of columns."""
    columns, row_bytes = Vector(float32, strip), 4 * strip

    @inline
    def found(k: int, past: int) -> Any:
        even, odd = splat(columns, float32(0.0)), splat(columns, float32(0.0))
        for i in range(0, key, 2):
            place = past + row_bytes * i
            even = fma(splat(columns, load(float32, k + 4 * i)), load(columns, place), even)
            odd = fma(splat(columns, load(float32, k + 4 * i + 4)), load(columns, place + row_bytes), odd)
        return even + odd

    @inline
    def learn(k: int, q: int, decay: float, d: Any, past: int, state: int) -> Any:
        y, kept = splat(columns, float32(0.0)), splat(columns, decay)
        for i in range(key):
            s = fma(splat(columns, load(float32, k + 4 * i)), d, kept * load(columns, past + row_bytes * i))
            store(state + row_bytes * i, s)
            y = fma(splat(columns, load(float32, q + 4 * i)), s, y)
        return y

    return found, learn


def recur(key: int, value: int, rule: Any) -> Body:
    """The kernel of a rule. A token's x is `stride` bytes long, with `groups` heads of queries and keys and `heads` of
    values; `state` is [slot][head][strip][key][column]; a segment's words are the slot in which it ends, and the one
    from which it begins."""
    strip = state_strip(value)
    strips = value // strip

    def body(tokens, x, stride, heads, groups, step, rate, a, bias, skip, segments, state, y, part, parts, scratch):
        state_bytes = 4 * key * value * heads
        for item in range(heads * strips * part // parts, heads * strips * (part + 1) // parts):
            head, column = item // strips, item % strips * strip
            own, before = state + 4 * key * strip * item, 0
            for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
                count, s = load(int64, segment), own + state_bytes * load(int64, segment + 8)
                past = own + state_bytes * load(int64, segment + 16)
                for token in range(before, before + count):
                    at = 4 * (heads * token + head)
                    dt = softplus(every(step + at) + every(bias + 4 * head))
                    decay = number(exp(every(a + 4 * head) * dt))
                    row, own_skip, place = x + stride * token, skip + 4 * head, y + value * at + 4 * column
                    rule(row, head, column, heads, groups, number(dt), decay, rate + at, own_skip, past, s, place)
                    past = s
                before += count

    return body


def recur_delta(key: int, value: int, share: int) -> Body:
    """By the delta rule; x has queries, keys and values. `share` neighbours have the same key, the next ones the next,
    in turns."""
    strip = state_strip(value)
    (found, learn), columns, shrink = words_of(key, strip), Vector(float32, strip), float(key) ** -0.5

    @inline
    def rule(row, head, column, heads, groups, dt, decay, rate, skip, past, state, y):
        q = row + 4 * key * (head // share % groups)
        k, v = q + 4 * key * groups, row + 8 * key * groups + 4 * (value * head + column)
        beta = number(logistic_product(splat(f32x16, float32(1.0)), every(rate)))
        k_scale, q_scale = inverse_length(k, key), inverse_length(q, key) * float32(shrink)
        d = load(columns, v) - splat(columns, decay * k_scale) * found(k, past)
        store(y, splat(columns, q_scale) * learn(k, q, decay, d * splat(columns, beta * k_scale), past, state))

    return recur(key, value, rule)


def recur_add(key: int, value: int, share: int) -> Body:
    """By adding; x has values, keys and queries."""
    strip = state_strip(value)
    (_, learn), columns = words_of(key, strip), Vector(float32, strip)

    @inline
    def rule(row, head, column, heads, groups, dt, decay, rate, skip, past, state, y):
        k = row + 4 * (value * heads + key * (head // share % groups))
        v = load(columns, row + 4 * (value * head + column))
        learnt = learn(k, k + 4 * key * groups, decay, splat(columns, dt) * v, past, state)
        store(y, fma(splat(columns, load(float32, skip)), v, learnt))

    return recur(key, value, rule)


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
