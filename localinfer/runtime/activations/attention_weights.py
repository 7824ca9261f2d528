"""Attention weights, computed in float32 from the queries and keys that a trace has."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.ring_buffer import VisiblePositions
from localinfer.graph.properties.attention import alibi_slopes
from localinfer.graph.recording.attention import LayerAttention
from localinfer.kernels.layout import BIAS_ROW, FIRST_BIAS

Floats = NDArray[np.float32]
Positions = NDArray[np.int64]


def attention_weights(
    layer: LayerAttention, visible: VisiblePositions, q: Floats, k: Floats, positions: Positions
) -> Floats:
    """Return the attention weights of a layer, (heads, tokens, tokens), for tokens at `positions` of a sequence, or of
    texts that follow each other.

    The share of attention sinks, which have no token, is missing: rows then add up to less than 1.
    """
    return np.concatenate(list(group_weights(layer, visible, q, k, positions)))


def group_weights(
    layer: LayerAttention, visible: VisiblePositions, q: Floats, k: Floats, positions: Positions
) -> Iterator[Floats]:
    """Yield the attention weights of the query heads of each key head, (group, tokens, tokens)."""
    heads, spec, n = layer.heads, layer.spec, len(positions)
    queries = q.reshape(n, heads.count_kv, heads.group, heads.key).transpose(1, 2, 0, 3)
    keys = k.reshape(n, heads.count_kv, heads.key).transpose(1, 2, 0)
    mask, sinks, added = attends(visible, positions), None, distance_scores(layer, positions)
    if layer.sink_scores is not None:
        sinks = layer.sink_scores.data.view(np.float32).reshape(heads.count_kv, -1, 1, 1)
    for number in range(heads.count_kv):
        scores = (queries[number] @ keys[number]) * np.float32(layer.scale)
        if spec.cap:
            scores = np.float32(spec.cap) * np.tanh(scores / np.float32(spec.cap))
        if added is not None:
            scores += added[number]
        scores = np.where(mask, scores, -np.inf)
        largest = scores.max(axis=2, keepdims=True)
        if sinks is not None:
            largest = np.maximum(largest, sinks[number])
        weights = np.exp(scores - largest)
        total = weights.sum(axis=2, keepdims=True)
        if sinks is not None:
            total += np.exp(sinks[number] - largest)
        yield weights / total


def distance_scores(layer: LayerAttention, positions: Positions) -> Floats | None:
    """Return what is added to the scores of each key by its distance, (key heads, group, tokens, tokens), or None."""
    heads, spec, ahead = layer.heads, layer.spec, positions[None, :] - positions[:, None]
    if layer.biases is not None:
        rows = layer.biases.data.view(np.float32).reshape(heads.count_kv, heads.group, BIAS_ROW)
        biases: Floats = rows[..., np.clip(ahead + FIRST_BIAS, 0, BIAS_ROW - 1)] * np.float32(np.log(2))
        return biases
    if spec.max_alibi_bias:
        slopes = alibi_slopes(heads.count, spec.max_alibi_bias).astype(np.float32)
        lowered: Floats = -slopes.reshape(heads.count_kv, -1, 1, 1) * np.abs(ahead).astype(np.float32)
        return lowered
    return None


def attends(visible: VisiblePositions, positions: Positions) -> NDArray[np.bool_]:
    """Return whether each token attends to each other one, (tokens, tokens). A text begins at each position 0."""
    own, other = positions[:, None], positions[None, :]
    last = own if visible.causal else own + visible.window // 2
    texts = np.cumsum(positions == 0)
    result: NDArray[np.bool_] = (other >= visible.oldest(positions)[:, None]) | (other < visible.sinks)
    result &= (other <= last) & (other >= visible.n_masked) & (texts[:, None] == texts[None, :])
    return result
