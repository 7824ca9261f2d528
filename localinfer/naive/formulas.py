"""The formulas of the naive forward pass: rotary embeddings, norms, activations, which positions a token attends to,
and which experts it chooses."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.properties.attention import alibi_slopes
from localinfer.graph.properties.hyper_connections import HyperConnections
from localinfer.graph.properties.ngrams import Ngrams
from localinfer.graph.properties.rope import AttentionTemperature, Rope
from localinfer.graph.properties.router import Router

Floats = NDArray[np.floating[Any]]  # of the model's dtype
Positions = NDArray[np.integer[Any]]


def split_heads(x: Floats, n: int) -> Floats:
    """Reshape (n_tokens, n * head_size) -> (n, n_tokens, head_size)."""
    return x.reshape(x.shape[0], n, -1).transpose(1, 0, 2)


def join_heads(x: Floats) -> Floats:
    """Reshape (n, n_tokens, head_size) -> (n_tokens, n * head_size)."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1).copy()


def visible(position: Positions, window: int, sinks: int = 0) -> NDArray[np.bool_]:
    """Return whether a position (row) attends to another one (column): less than `window` back and not ahead, or a
    sink."""
    back = position[:, None] - position[None, :]
    return (back >= 0) & ((window == 0) | (back < window) | (position < sinks))


def seen_runs(position: Positions, run: int) -> NDArray[np.bool_]:
    """Return whether a position (row) is not before the last position of a compressed run (column)."""
    ends = np.arange(run - 1, len(position), run)
    seen: NDArray[np.bool_] = position[:, None] >= ends
    return seen


def within_window(position: Positions, window: int) -> NDArray[np.bool_]:
    """Return whether two positions are within half a window of each other."""
    distance = np.abs(position[:, None] - position[None, :])
    return (window == 0) | (distance <= window // 2)


# --- rope ---


def alibi(heads: int, max_bias: float, position: Positions) -> Floats:
    """Return what is added to the scores of each head, (heads, n_tokens, n_tokens): the negative distance of the key
    times the slope of the head (ALiBi; Press et al., 2021), or 0 if `max_bias` is 0."""
    slopes = alibi_slopes(heads, max_bias) if max_bias else np.zeros(heads)
    lowered: Floats = -slopes[:, None, None] * np.abs(position[None, :] - position[:, None])
    return lowered


def plain_frequencies(base: float, n: int) -> Floats:
    """Return the radians per position of each of n / 2 pairs."""
    return base ** (-2.0 * np.arange(n // 2) / n)


def yarn_frequencies(
    frequencies: Floats, base: float, factor: float, original: int, fast: float, slow: float, truncate: bool
) -> Floats:
    """Return YaRN's frequencies (Peng et al., 2023, section 3.2): fast pairs are unchanged, slow ones slowed."""
    n, result = 2 * len(frequencies), frequencies.copy()

    def pair_of(times: float) -> float:
        return n * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_of(fast), pair_of(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    for i in range(len(frequencies)):
        slowed = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        result[i] = slowed * frequencies[i] / factor + (1 - slowed) * frequencies[i]
    return result


def rotate(x: Floats, position: Positions, rope: Rope) -> Floats:
    """Rotate the first values of each head, two per frequency. Positions are (n_tokens,), or (n_tokens, 3)."""
    n, axes = 2 * len(rope.frequencies), rope.axes
    if position.ndim == 2:  # the coordinate of each pair
        position = position[:, [0] * (n // 2) if axes is None else axes.tolist()]
    else:
        position = position[:, None]
    angle = (position - rope.offset) * rope.frequencies
    cos, sin = ((rope.amplitude * table).astype(x.dtype) for table in (np.cos(angle), np.sin(angle)))
    return rotate_pairs(x, cos, sin, rope.pairs)


def rotate_pairs(x: Floats, cos: Floats, sin: Floats, pairs: str) -> Floats:
    """Rotate pairs of the first values of each head by angles of which the cosines and sines are given, one per pair.
    The pairs are neighbours ("interleaved"), or half of the rotated values apart ("halves"), or a quarter of them, in
    each half ("quarters"), or a sixth of them, in each third ("sixths")."""
    n, result = 2 * cos.shape[-1], x.copy()
    if not n:
        return result
    distance = {"interleaved": 1, "halves": n // 2, "quarters": n // 4, "sixths": n // 6}[pairs]
    one = np.arange(n).reshape(-1, 2, distance)[:, 0].reshape(-1)
    other = one + distance
    result[..., one] = x[..., one] * cos - x[..., other] * sin
    result[..., other] = x[..., one] * sin + x[..., other] * cos
    return result


def temperature_at(temperature: AttentionTemperature, positions: Positions) -> Floats:
    """Return the factor of the queries at each position."""
    steps = np.floor((positions + temperature.offset) / temperature.original)
    factors: Floats = 1 + temperature.rate * np.log(1 + steps)
    return factors


# --- norms and activations ---


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Scale the last axis to a mean square of one."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def layer_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Normalize the last axis to a mean of zero and a variance of one."""
    return rms_norm(x - x.mean(axis=-1, keepdims=True), weight, eps)


def match_rms(y: Floats, x: Floats) -> Floats:
    """Scale each row of y to the norm of that of x."""
    squares = np.maximum((y * y).mean(axis=1, keepdims=True), 1e-5)
    return y * np.sqrt((x * x).mean(axis=1, keepdims=True) / squares)


def largest(x: Floats, k: int) -> NDArray[np.bool_]:
    """Return which values are among the k largest of the last axis. Of equal ones, the first count."""
    result = np.zeros(x.shape, bool)
    np.put_along_axis(result, np.argsort(-x, axis=-1, kind="stable")[..., :k], True, axis=-1)
    return result


def softmax(x: Floats) -> Floats:
    """Return the softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x: Floats) -> Floats:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


def soft_cap(x: Floats, cap: float) -> Floats:
    """Return cap * tanh(x / cap), or x if cap is 0."""
    return cap * np.tanh(x / cap) if cap else x


def xielu(x: Floats, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Floats:
    """Return the expanded integral of ELU (Huang and Schlag, 2024)."""
    y: Floats = np.where(x > 0, alpha_p * x**2, alpha_n * (np.expm1(np.minimum(x, eps)) - x)) + beta * x
    return y


def silu(x: Floats) -> Floats:
    """Return x * sigmoid(x), in a form that does not overflow."""
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


def gelu(x: Floats) -> Floats:
    """Return the tanh approximation of GELU."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x)))


def gelu_erf(x: Floats) -> Floats:
    """Return the exact GELU."""
    return (0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))).astype(x.dtype)


def gelu_quick(x: Floats) -> Floats:
    """Return the sigmoid approximation of GELU."""
    return x * sigmoid(1.702 * x)


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


def relu_squared(x: Floats) -> Floats:
    return relu(x) ** 2


def sigmoid_of_root(x: Floats) -> Floats:
    """Return the sigmoid of the signed square root, for which magnitudes count as at least 1e-6."""
    return sigmoid(np.sign(x) * np.sqrt(np.maximum(np.abs(x), 1e-6)))


def gated_activation(activation: str, gate: Floats, up: Floats) -> Floats:
    """Return act(gate) * up. gpt-oss clamps both and adds one to up. An activation may have a limit, after a colon: of
    the magnitudes of up, and of act(gate), or of the gate before it; SiTU has a soft one of the gate, and one of up."""
    name, *numbers = activation.split(":")
    if name == "situ":
        size, size_of_up = map(float, numbers)
        return soft_cap(gate, size) * sigmoid(gate) * soft_cap(up, size_of_up)
    if numbers:
        size = float(numbers[0])
        act = silu(np.minimum(gate, size)) if name == "silu_of_limited" else np.minimum(silu(gate), size)
        return act * np.clip(up, -size, size)
    if activation == "clamped_swiglu":
        gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        return gate * sigmoid(1.702 * gate) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "none": np.asarray,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "gelu_quick": gelu_quick,
    "relu": relu,
    "relu_squared": relu_squared,
    "softplus": lambda x: np.logaddexp(0, x),
    "sigmoid_of_root": sigmoid_of_root,
}


# --- embeddings of n-grams ---


def ngram_rows(ids: NDArray[np.int64], ngrams: Ngrams) -> NDArray[np.int64]:
    """Return the rows of the n-grams that end at each token, (n_tokens, per_token). Before the first token, and from
    the token that ends a text on, earlier tokens count as this token."""
    rows = []
    for at in range(len(ids)):
        last = [int(id) for id in ids[max(at + 1 - ngrams.longest, 0) : at + 1]][::-1]
        known = last[1 : last.index(ngrams.end, 1)] if ngrams.end in last[1:] else last[1:]
        last = [last[0], *known, *[ngrams.end] * (ngrams.longest - 1 - len(known))]
        mixed, of_token = last[0] * int(ngrams.multipliers[0]), []
        for back in range(1, ngrams.longest):
            mixed ^= last[back] * int(ngrams.multipliers[back])
            of_token += [mixed % int(size) for size in ngrams.sizes[ngrams.heads * (back - 1) : ngrams.heads * back]]
        rows.append(of_token)
    result: NDArray[np.int64] = np.array(rows, np.int64) + ngrams.offsets
    return result


# --- residual streams ---


def weigh_streams(logits: Floats, shape: HyperConnections) -> Floats:
    """Return the weights of streams, (tokens, n), from their logits: those of the sum that a branch reads, or also
    those of its output, and of a matrix from streams to streams whose rows and columns have a sum of 1."""
    count, eps = shape.count, logits.dtype.type(shape.eps)
    of_sum, of_output, matrix = np.split(logits, [count, 2 * count], axis=1)
    parts = [sigmoid(of_sum) + eps, shape.magnitude * sigmoid(of_output) + logits.dtype.type(shape.output_eps)]
    if matrix.size:
        matrix = softmax(matrix.reshape(-1, count, count)) + eps
        for number in range(shape.iterations):
            matrix = matrix / (matrix.sum(axis=2, keepdims=True) + eps) if number else matrix
            matrix = matrix / (matrix.sum(axis=1, keepdims=True) + eps)
        parts.append(matrix.reshape(len(matrix), -1))
    return np.concatenate(parts, axis=1)


def attend_streams(rows: Floats, weight: Floats, eps: float) -> Floats:
    """Return the mean of several rows of each token, (tokens, rows, n), with the softmax of their scores as weights:
    the products of `weight` with their RMSNorm."""
    weights = softmax(rms_norm(rows, weight, eps).sum(axis=-1))
    y: Floats = np.einsum("tr,trn->tn", weights, rows)
    return y


# --- mixtures of experts ---


def sqrt_softplus(x: Floats) -> Floats:
    """Return the square root of softplus."""
    y: Floats = np.sqrt(np.logaddexp(0, x))
    return y


def route(
    scores: Floats, bias: Floats, router: Router, ids: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], Floats]:
    """Return the experts of each token, and their weights: (n_tokens, used). The bias only affects the choice, and
    nothing does if their `ids` are given."""
    p = expert_probabilities(scores, router)
    ids = choose_experts(p + bias, router) if ids is None else ids
    return ids, expert_weights(p, ids, router)


def expert_probabilities(scores: Floats, router: Router) -> Floats:
    """Return the probabilities of the experts, or for some routers their scores: (n_tokens, experts)."""
    functions = {"softmax": softmax, "sigmoid": sigmoid, "sqrt_softplus": sqrt_softplus}
    return functions.get(router.gating, np.asarray)(scores)


def choose_experts(p: Floats, router: Router) -> NDArray[np.int64]:
    """Return the experts with the largest values, (n_tokens, used), in the order of choice. Experts outside the best
    groups are excluded."""
    ids = np.zeros((len(p), router.used), np.int64)
    for token, row in enumerate(p):
        by_group = row.reshape(router.groups, -1).copy()
        sums = np.sort(by_group, axis=1)[:, -router.best_per_group :].sum(axis=1)
        by_group[np.argsort(-sums, kind="stable")[router.groups_used :]] = -np.inf
        ids[token] = np.argsort(-by_group.ravel(), kind="stable")[: router.used]
    return ids


def expert_weights(p: Floats, ids: NDArray[np.int64], router: Router) -> Floats:
    """Return the weights of the chosen experts, (n_tokens, used), from their probabilities."""
    weights = np.take_along_axis(p, ids, axis=1)
    if router.gating in ("softmax_of_chosen", "sigmoid_of_chosen"):
        weights = {"softmax_of_chosen": softmax, "sigmoid_of_chosen": sigmoid}[router.gating](weights)
    if router.gating == "sparse_mixer":
        weights = np.array([[sparse_mixer_weight(row, chosen, rank) for rank in range(router.used)]
                            for row, chosen in zip(p, ids, strict=True)], p.dtype)  # fmt: skip
    return router.scale * weights / (weights.sum(axis=1, keepdims=True) if router.normed else 1)


def sparse_mixer_weight(logits: Floats, chosen: NDArray[np.int64], rank: int) -> float:
    """Return the softmax weight of the expert chosen at this rank among those that were not chosen before it, and whose
    logits are within 0.02 of the larger magnitude."""
    largest = logits[chosen[rank]]
    near = [
        number
        for number, logit in enumerate(logits)
        if number not in chosen[:rank] and largest - logit <= 0.02 * max(abs(logit), largest)
    ]
    return float(1 / np.exp(logits[near] - largest).sum())
