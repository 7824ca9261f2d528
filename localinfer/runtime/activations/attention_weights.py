"""Attention weights, computed in float32 from the queries and keys that a trace has."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.ring_buffer import VisiblePositions
from localinfer.graph.properties.attention import alibi_slopes
from localinfer.graph.recording.attention import LayerAttention

Floats = NDArray[np.float32]
Positions = NDArray[np.int64]


def attention_weights(
    layer: LayerAttention, visible: VisiblePositions, q: Floats, k: Floats, positions: Positions
) -> Floats:
    """Return the attention weights of a layer, (heads, tokens, tokens), for tokens at `positions` of a sequence, or of
    texts that follow each other.

    The share of attention sinks, which have no token, is missing: rows then add up to less than 1.
    """
    heads, spec = layer.heads, layer.spec
    n = len(positions)
    queries = q.reshape(n, heads.count_kv, heads.group, heads.key).transpose(1, 2, 0, 3)
    keys = k.reshape(n, heads.count_kv, 1, heads.key).transpose(1, 2, 3, 0)
    scores = (queries @ keys).reshape(heads.count, n, n) * np.float32(layer.scale)
    if spec.cap:
        scores = np.float32(spec.cap) * np.tanh(scores / np.float32(spec.cap))
    if spec.max_alibi_bias:
        slopes = alibi_slopes(heads.count, spec.max_alibi_bias).astype(np.float32)[:, None, None]
        scores += slopes * (positions[None, :] - positions[:, None])
    scores = np.where(attends(visible, positions), scores, -np.inf)
    largest = scores.max(axis=2, keepdims=True)
    sinks = None if layer.sink_scores is None else layer.sink_scores.data.view(np.float32).reshape(-1, 1, 1)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=2, keepdims=True) + (0 if sinks is None else np.exp(sinks - largest))
    result: Floats = weights / total
    return result


def attends(visible: VisiblePositions, positions: Positions) -> NDArray[np.bool_]:
    """Return whether each token attends to each other one, (tokens, tokens). A text begins at each position 0."""
    own, other = positions[:, None], positions[None, :]
    last = own if visible.causal else own + visible.window // 2
    texts = np.cumsum(positions == 0)
    result: NDArray[np.bool_] = (other >= visible.oldest(positions)[:, None]) | (other < visible.sinks)
    result &= (other <= last) & (other >= visible.n_masked) & (texts[:, None] == texts[None, :])
    return result
