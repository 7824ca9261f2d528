"""Recurrent heads with a state matrix each, which decays, adds the outer product of key and value, and is multiplied by
the query.

    S = decay * S + key (x) d,   y = query . S,   decay = exp(a * softplus(step + bias))

With the rule "delta" (gated delta net; Yang et al., 2024), d = sigmoid(rate) * (value - decay * key . S); keys are
normalized to length 1 and queries to length key^-1/2. With the rule "kda" (Kimi Delta Attention; Kimi Team, 2025), each
row of the state has a decay of its own, which `channel_decay` computes. With the rule "add" (Mamba 2; Dao and Gu,
2024), d = softplus(step + bias) * value, and skip * value is added to y.

The columns of a state are independent: threads divide them into strips and process all tokens of a batch strip by
strip, so the strip stays in the L1 cache. Prefill therefore computes the same bits as decoding token by token.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import float32, int64

from localinfer.kernels.activations import logistic_product, sigmoid
from localinfer.kernels.exponentials import exp, softplus
from localinfer.kernels.layout import state_strip
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.threads import chunk_range
from quant.jit.vectors import (
    Vector,
    absolute,
    extract,
    f32x16,
    fma,
    inline,
    load,
    reduce_sum,
    splat,
    sqrt,
    store,
)

Body = Callable[..., None]
LENGTH_EPS = 1e-6  # added to the squared length of keys and queries


@inline
def broadcast_load(address: int) -> Any:
    """Load a float into all lanes."""
    return splat(f32x16, load(float32, address))


@inline
def inverse_length(x: int, n: int) -> Any:
    """Return 1 / |x| of n floats, n a multiple of 16."""
    squares = splat(f32x16, float32(0.0))
    for i in range(0, n, 16):
        value = load(f32x16, x + 4 * i)
        squares = fma(value, value, squares)
    return float32(1.0) / sqrt(reduce_sum(squares) + float32(LENGTH_EPS))


@inline
def extract_scalar(v: Any) -> Any:
    """Return the value that all lanes have."""
    return extract(v, 0)


def make_state_functions(key: int, strip: int, *, row_decays: bool = False) -> tuple[Any, Any]:
    """Make the functions for a strip of columns.

    read_state(k, previous_state) returns key . previous_state. update_state(k, q, decay, d, previous_state, state)
    stores S = decay * previous_state + key (x) d and returns query . S. With `row_decays`, decay is the address of a
    number for each row of the state.
    """
    columns, row_bytes = Vector(float32, strip), 4 * strip

    @inline
    def read_state(k: int, previous_state: int) -> Any:
        even, odd = splat(columns, float32(0.0)), splat(columns, float32(0.0))
        for i in range(0, key, 2):
            address = previous_state + row_bytes * i
            even = fma(splat(columns, load(float32, k + 4 * i)), load(columns, address), even)
            odd = fma(splat(columns, load(float32, k + 4 * i + 4)), load(columns, address + row_bytes), odd)
        return even + odd

    @inline
    def update_state(k: int, q: int, decay: float, d: Any, previous_state: int, state: int) -> Any:
        y, decays = splat(columns, float32(0.0)), splat(columns, decay)
        for i in range(key):
            s = fma(splat(columns, load(float32, k + 4 * i)), d, decays * load(columns, previous_state + row_bytes * i))
            store(state + row_bytes * i, s)
            y = fma(splat(columns, load(float32, q + 4 * i)), s, y)
        return y

    @inline
    def update_rows(k: int, q: int, decays: int, d: Any, previous_state: int, state: int) -> Any:
        y = splat(columns, float32(0.0))
        for i in range(key):
            decayed = splat(columns, load(float32, decays + 4 * i)) * load(columns, previous_state + row_bytes * i)
            s = fma(splat(columns, load(float32, k + 4 * i)), d, decayed)
            store(state + row_bytes * i, s)
            y = fma(splat(columns, load(float32, q + 4 * i)), s, y)
        return y

    return read_state, update_rows if row_decays else update_state


class StateUpdate(NamedTuple):
    """The update of a strip of a head's state by one token."""

    token: int
    head: int
    column: int  # first column of the strip
    previous_state: int  # address of the strip before the update
    state: int  # address of the strip after the update
    scratch: int


@inline
def head_decay(args: Any, update: StateUpdate) -> tuple[float, float]:
    """Return dt = softplus(step + bias) of a head, and its decay."""
    step = broadcast_load(args.step + 4 * (args.heads * update.token + update.head))
    dt = softplus(step + broadcast_load(args.bias + 4 * update.head))
    return extract_scalar(dt), extract_scalar(exp(broadcast_load(args.a + 4 * update.head) * dt))


def recur(key: int, value: int, update_rule: Any) -> Body:
    """Make the kernel of an update rule, which is a function of the kernel's arguments and a `StateUpdate` and returns
    the strip's output.

    A token's x is `stride` bytes long and has `groups` heads of queries and keys and `heads` heads of values. `state`
    is [slot][head][strip][key][column]. A segment's two words are the slot to write and the slot to read.
    """
    strip = state_strip(value)
    strips = value // strip

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        heads = args.heads
        state_bytes = 4 * key * value * heads
        for item in range(heads * strips * chunk_index // n_chunks, heads * strips * (chunk_index + 1) // n_chunks):
            head, column = item // strips, item % strips * strip
            first_slot, first_token = args.state + 4 * key * strip * item, 0
            for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
                count, s = load(int64, segment), first_slot + state_bytes * load(int64, segment + 8)
                previous_state = first_slot + state_bytes * load(int64, segment + 16)
                for token in range(first_token, first_token + count):
                    update = StateUpdate(token, head, column, previous_state, s, scratch)
                    store(args.y + 4 * (value * (heads * token + head) + column), update_rule(args, update))
                    previous_state = s
                first_token += count

    return body


@inline
def learning_rate(args: Any, update: StateUpdate) -> float:
    """Return sigmoid(rate) of a head."""
    rate = broadcast_load(args.rate + 4 * (args.heads * update.token + update.head))
    return extract_scalar(logistic_product(splat(f32x16, float32(1.0)), rate))


def recur_delta(key: int, value: int, heads_per_key: int) -> Body:
    """Make the kernel with the delta rule; x has queries, keys and values. `heads_per_key` adjacent value heads use the
    same key head, and the next ones use the next key head, cyclically."""
    strip = state_strip(value)
    (read_state, update_state), columns = make_state_functions(key, strip), Vector(float32, strip)
    query_scale = float(key) ** -0.5

    @inline
    def rule(args: Any, update: StateUpdate) -> Any:
        row, head, previous_state = args.x + args.stride * update.token, update.head, update.previous_state
        q = row + 4 * key * (head // heads_per_key % args.groups)
        k, v = q + 4 * key * args.groups, row + 8 * key * args.groups + 4 * (value * head + update.column)
        beta, (_, decay) = learning_rate(args, update), head_decay(args, update)
        k_scale, q_scale = inverse_length(k, key), inverse_length(q, key) * float32(query_scale)
        d = load(columns, v) - splat(columns, decay * k_scale) * read_state(k, previous_state)
        output = update_state(k, q, decay, d * splat(columns, beta * k_scale), previous_state, update.state)
        return splat(columns, q_scale) * output

    return recur(key, value, rule)


def recur_kda(key: int, value: int) -> Body:
    """Make the kernel with the delta rule and a decay for each row of a state, [token][head][key] at `step`. x has
    queries, keys and values of all heads."""
    strip = state_strip(value)
    (read_state, update_state), columns = make_state_functions(key, strip, row_decays=True), Vector(float32, strip)
    query_scale = float(key) ** -0.5

    @inline
    def rule(args: Any, update: StateUpdate) -> Any:
        row, head, decayed_key = args.x + args.stride * update.token, update.head, update.scratch
        q = row + 4 * key * head
        k, v = q + 4 * key * args.groups, row + 8 * key * args.groups + 4 * (value * head + update.column)
        decays = args.step + 4 * key * (args.heads * update.token + head)
        for i in range(0, 4 * key, 64):
            store(decayed_key + i, load(f32x16, k + i) * load(f32x16, decays + i))
        k_scale, q_scale = inverse_length(k, key), inverse_length(q, key) * float32(query_scale)
        d = load(columns, v) - splat(columns, k_scale) * read_state(decayed_key, update.previous_state)
        d = d * splat(columns, learning_rate(args, update) * k_scale)
        return splat(columns, q_scale) * update_state(k, q, decays, d, update.previous_state, update.state)

    return recur(key, value, rule)


def recur_add(key: int, value: int, heads_per_key: int) -> Body:
    """Make the kernel with the additive rule; x has values, keys and queries."""
    strip = state_strip(value)
    (_, update_state), columns = make_state_functions(key, strip), Vector(float32, strip)

    @inline
    def rule(args: Any, update: StateUpdate) -> Any:
        row, head = args.x + args.stride * update.token, update.head
        k = row + 4 * (value * args.heads + key * (head // heads_per_key % args.groups))
        v = load(columns, row + 4 * (value * head + update.column))
        dt, decay = head_decay(args, update)
        d = splat(columns, dt) * v
        output = update_state(k, k + 4 * key * args.groups, decay, d, update.previous_state, update.state)
        return fma(splat(columns, load(float32, args.skip + 4 * head)), v, output)

    return recur(key, value, rule)


def channel_decay(key: int, gate: str) -> Body:
    """Make the kernel that replaces step, [token][head][key], with the decay of each row of a state.

    It is exp(a * softplus(step + bias)) with the gate "softplus", and exp(bound * sigmoid(|a| * (step + bias))) with
    "sigmoid", which is at least e^bound: files of Ling 3.0 have a positive a, others a negative one.
    """
    bounded = gate == "sigmoid"

    @inline
    def log_decay(step: Any, a: Any, bound: Any) -> Any:
        return bound * sigmoid(absolute(a) * step) if bounded else a * softplus(step)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens) * args.heads, 1, chunk_index, n_chunks)
        bound = splat(f32x16, float32(args.bound))
        for item in range(first, end):
            head, row = item % args.heads, args.step + 4 * key * item
            a, bias = broadcast_load(args.a + 4 * head), args.bias + 4 * key * head
            for i in range(0, 4 * key, 64):
                step = load(f32x16, row + i) + load(f32x16, bias + i)
                store(row + i, exp(log_decay(step, a, bound)))

    return body


def split_halves() -> Body:
    """Make the kernel that splits each head of x, [token][head][first, second], into two buffers."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        size = args.size
        items = load(int64, args.tokens) * args.heads
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            source, offset = args.x + 8 * size * item, 4 * size * item
            for i in range(0, 4 * (size // 16 * 16), 64):
                store(args.first + offset + i, load(f32x16, source + i))
                store(args.second + offset + i, load(f32x16, source + 4 * size + i))
            for i in range(4 * (size // 16 * 16), 4 * size, 4):
                store(args.first + offset + i, load(float32, source + i))
                store(args.second + offset + i, load(float32, source + 4 * size + i))

    return body
