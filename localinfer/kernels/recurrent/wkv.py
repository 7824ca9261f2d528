"""The time mixing of RWKV-7 (Peng et al., 2025) and RWKV-6 (Peng et al., 2024): a state matrix per head, with a decay
for each key dimension.

    S[j] = decay[j] * S[j] + key[j] * value - removed[j] * rate[j] * (removed . S),   y = receptance . S

`removed` is the normalized removal key of RWKV-7; RWKV-6 removes nothing, and neither does gated linear attention (Yang
et al., 2024), which QRWKV has. `prepare` transforms the outputs of RWKV-7's matrices, and `decay` the decays of the
others; `recur_wkv`, `recur_decayed` and `recur_gated` compute the recurrences; `finish` normalizes the result, and adds
RWKV-7's bonus of the current token. As in `localinfer.kernels.recurrent.state_matrix`, columns of a state are
independent, and prefill computes the same bits as decoding.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.activations import sigmoid
from localinfer.kernels.exponentials import exp
from localinfer.kernels.layout import state_strip
from localinfer.kernels.norm import inverse_rms, subtract_mean
from localinfer.kernels.recurrent.state_matrix import StateUpdate, make_state_functions, recur
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.threads import chunk_range
from quant.jit.vectors import Vector, extract, f32x16, fma, inline, load, reduce_sum, splat, sqrt, store

Body = Callable[..., None]
MAX_DECAY_RATE = -0.606531  # -e^-1/2: the decay is e^(this * sigmoid(w)), at least 0.545
MIN_LENGTH = 1e-12


def token_shift() -> Body:
    """Make the kernel y[t] = x[t - 1], which then stores the last row of x in the tail, [slot][n]. A segment's two
    words are the slot to write and the slot to read. Threads divide the columns."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(n, 16, chunk_index, n_chunks)
        before = 0
        for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
            count, bonus = load(int64, segment), args.tail + 4 * n * load(int64, segment + 8)
            past = args.tail + 4 * n * load(int64, segment + 16)
            for token in range(before, before + count):
                source = args.x + 4 * n * (token - 1) if token > before else past
                for i in range(first, end, 16):
                    store(args.y + 4 * (n * token + i), load(f32x16, source + 4 * i))
            last = args.x + 4 * n * (before + count - 1)
            for i in range(first, end if count else first, 16):
                store(bonus + 4 * i, load(f32x16, last + 4 * i))
            before += count

    return body


def lerp(*, shifted: bool) -> Body:
    """Make the kernel y = x + weight * (other - x). Weights of adjacent tokens are `step` floats apart, from float
    number `first` on. If they are `shifted`, `shift`, one row for all tokens, is added to them."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for token in range(first, end):
            row, weights = 4 * args.n * token, args.weight + 4 * (args.first + args.step * token)
            for i in range(0, 4 * args.n, 64):
                value, weight = load(f32x16, args.x + row + i), load(f32x16, weights + i)
                if shifted:
                    weight = weight + load(f32x16, args.shift + i)
                store(args.y + row + i, fma(weight, load(f32x16, args.other + row + i) - value, value))

    return body


@inline
def length(x: int, weight: int, n: int) -> Any:
    """Return |x * weight|, at least MIN_LENGTH."""
    squares = splat(f32x16, float32(0.0))
    for i in range(0, 4 * n, 64):
        value = load(f32x16, x + i) * load(f32x16, weight + i)
        squares = fma(value, value, squares)
    return max(sqrt(reduce_sum(squares)), float32(MIN_LENGTH))


def prepare(size: int) -> Body:
    """Make the kernel that computes for each head of `size` values: w = the decay, `removed` = key * k_k with length 1,
    a = in-context learning rate * removed, and k = the replacement key."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens) * args.heads, 1, chunk_index, n_chunks)
        one, slowest = splat(f32x16, float32(1.0)), splat(f32x16, float32(MAX_DECAY_RATE))
        for item in range(first, end):
            head, offset = 4 * size * (item % args.heads), 4 * size * item
            shrink = splat(f32x16, float32(1.0) / length(args.k + offset, args.k_k + head, size))
            for i in range(0, 4 * size, 64):
                key, rate, at = (
                    load(f32x16, args.k + offset + i),
                    sigmoid(load(f32x16, args.a + offset + i)),
                    offset + i,
                )
                removal = key * load(f32x16, args.k_k + head + i) * shrink
                store(args.removed + at, removal)
                store(args.a + at, removal * rate)
                store(args.k + at, key * fma(rate - one, load(f32x16, args.k_a + head + i), one))
                store(args.w + at, exp(slowest * sigmoid(load(f32x16, args.w + at))))

    return body


def recur_wkv(size: int) -> Body:
    """Make the kernel of the recurrence for heads of `size` keys and values. `state` is
    [slot][head][strip][key][column]. A segment's two words are the slot to write and the slot to read."""
    strip = state_strip(size)
    strips, row_bytes, columns, (read_state, _) = (
        size // strip,
        4 * strip,
        Vector(float32, strip),
        make_state_functions(size, strip),
    )

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        heads = args.heads
        state_bytes = 4 * size * size * heads
        for item in range(heads * strips * chunk_index // n_chunks, heads * strips * (chunk_index + 1) // n_chunks):
            head, column = item // strips, item % strips * strip
            bonus, before = args.state + size * row_bytes * item, 0
            for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
                count, s = load(int64, segment), bonus + state_bytes * load(int64, segment + 8)
                past = bonus + state_bytes * load(int64, segment + 16)
                for token in range(before, before + count):
                    at = 4 * size * (heads * token + head)
                    value, projection = load(columns, args.v + at + 4 * column), read_state(args.removed + at, past)
                    output = splat(columns, float32(0.0))
                    for i in range(size):
                        key, offset = at + 4 * i, row_bytes * i
                        decay, rate = (
                            splat(columns, load(float32, args.w + key)),
                            splat(columns, load(float32, args.a + key)),
                        )
                        decayed = decay * load(columns, past + offset)
                        updated = fma(splat(columns, load(float32, args.k + key)), value, decayed) - rate * projection
                        store(s + offset, updated)
                        output = fma(splat(columns, load(float32, args.r + key)), updated, output)
                    store(args.y + at + 4 * column, output)
                    past = s
                before += count

    return body


@inline
def weighted_product(r: int, weight: int, k: int, n: int) -> Any:
    """Return (r * weight) . k of n floats in all lanes."""
    products = splat(f32x16, float32(0.0))
    for i in range(0, 4 * n, 64):
        products = fma(load(f32x16, r + i) * load(f32x16, weight + i), load(f32x16, k + i), products)
    return splat(f32x16, reduce_sum(products))


def finish(size: int, *, normed: bool, bonus: bool) -> Body:
    """Make the kernel that, if `normed`, applies LayerNorm to each head of y, with weights and biases per head, and
    with `bonus` adds the value times (receptance * r_k) . key."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        y = args.y
        first, end = chunk_range(load(int64, args.tokens) * args.heads, 1, chunk_index, n_chunks)
        for item in range(first, end):
            head, offset = 4 * size * (item % args.heads), 4 * size * item
            if normed:
                subtract_mean(y + offset, size, y + offset)
                factor = splat(f32x16, inverse_rms(y + offset, size, args.eps))
                for i in range(0, 4 * size, 64):
                    value = load(f32x16, y + offset + i) * factor
                    shifted = fma(value, load(f32x16, args.weight + head + i), load(f32x16, args.bias + head + i))
                    store(y + offset + i, shifted)
            if bonus:
                share = weighted_product(args.r + offset, args.r_k + head, args.k + offset, size)
                for i in range(offset, offset + 4 * size, 64):
                    store(y + i, fma(share, load(f32x16, args.v + i), load(f32x16, y + i)))

    return body


def decay() -> Body:
    """Make the kernel that replaces w with the decays e^-e^(w + bias)."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        zero = splat(f32x16, float32(0.0))
        for token in range(first, end):
            row = args.w + 4 * args.n * token
            for i in range(0, 4 * args.n, 64):
                store(row + i, exp(zero - exp(load(f32x16, row + i) + load(f32x16, args.bias + i))))

    return body


def recur_decayed(size: int) -> Body:
    """Make the kernel of RWKV-6's recurrence for heads of `size` keys and values. The output is that of the state
    before the token, y = receptance . S, and the token's own share, the value times (receptance * first) . key."""
    strip = state_strip(size)
    row_bytes, columns = 4 * strip, Vector(float32, strip)

    @inline
    def rule(args: Any, update: StateUpdate) -> Any:
        head, past = 4 * size * update.head, update.previous_state
        at = 4 * size * args.heads * update.token + head
        value = load(columns, args.v + at + 4 * update.column)
        share = weighted_product(args.r + at, args.first + head, args.k + at, size)
        output = splat(columns, extract(share, 0)) * value
        for i in range(size):
            key, offset = at + 4 * i, row_bytes * i
            state = load(columns, past + offset)
            output = fma(splat(columns, load(float32, args.r + key)), state, output)
            decayed = splat(columns, load(float32, args.w + key)) * state
            store(update.state + offset, fma(splat(columns, load(float32, args.k + key)), value, decayed))
        return output

    return recur(size, size, rule)


def recur_gated(size: int) -> Body:
    """Make the kernel of gated linear attention for heads of `size` keys and values. Keys are multiplied by 1 - decay
    first, and the output is size^-1/2 times receptance . S. `groups` heads of keys and values are shared by as many
    adjacent heads each."""
    strip = state_strip(size)
    (_, update_state), columns = make_state_functions(size, strip, row_decays=True), Vector(float32, strip)
    scale = float(size) ** -0.5

    @inline
    def rule(args: Any, update: StateUpdate) -> Any:
        at = 4 * size * (args.heads * update.token + update.head)
        shared = 4 * size * (args.groups * update.token + update.head * args.groups // args.heads)
        one, r, decays = splat(f32x16, float32(1.0)), args.r + at, args.w + at
        for i in range(0, 4 * size, 64):
            store(update.scratch + i, load(f32x16, args.k + shared + i) * (one - load(f32x16, decays + i)))
        value = load(columns, args.v + shared + 4 * update.column)
        output = update_state(update.scratch, r, decays, value, update.previous_state, update.state)
        return splat(columns, float32(scale)) * output

    return recur(size, size, rule)
