"""Attention weights, computed in float32 from the queries and keys that a trace has."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.recording.attention import LayerAttention

Floats = NDArray[np.float32]
Positions = NDArray[np.int64]


def attention_weights(
    layer: LayerAttention, q: Floats, k: Floats, positions: Positions, *, causal: bool
) -> Floats:  # fmt: skip
    """Return the attention weights of a layer, (heads, tokens, tokens), for tokens of one sequence at `positions`.

    The share of attention sinks, which have no token, is missing: rows then add up to less than 1.
    """
    heads, spec = layer.heads, layer.spec
    n = len(positions)
    queries = q.reshape(n, heads.count_kv, heads.group, heads.key).transpose(1, 2, 0, 3)
    keys = k.reshape(n, heads.count_kv, 1, heads.key).transpose(1, 2, 3, 0)
    scores = (queries @ keys).reshape(heads.count, n, n) * np.float32(layer.scale)
    if spec.cap:
        scores = np.float32(spec.cap) * np.tanh(scores / np.float32(spec.cap))
    scores = np.where(visible(layer, positions, causal=causal), scores, -np.inf)
    largest = scores.max(axis=2, keepdims=True)
    sinks = None if layer.sink_scores is None else layer.sink_scores.data.view(np.float32).reshape(-1, 1, 1)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=2, keepdims=True) + (0 if sinks is None else np.exp(sinks - largest))
    result: Floats = weights / total
    return result


def visible(layer: LayerAttention, positions: Positions, *, causal: bool) -> NDArray[np.bool_]:
    """Return whether each token attends to each other one, (tokens, tokens)."""
    distance, window = positions[:, None] - positions[None, :], layer.spec.window
    mask: NDArray[np.bool_] = distance >= 0 if causal else np.ones_like(distance, np.bool_)
    if layer.spec.chunked:
        mask &= positions[:, None] // window == positions[None, :] // window
    elif window:
        mask &= distance < window if causal else np.abs(distance) <= window // 2
    return mask
