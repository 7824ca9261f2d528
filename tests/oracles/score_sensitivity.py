"""How strongly the outputs of attention heads depend on queries and keys, from the derivatives written out in
float64."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def sensitivities(weights: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Return the sums of the squares of all derivatives of the heads' outputs by the query of each token, and by its
    key, (tokens,).

    `weights` are (heads, tokens, tokens), `q` (tokens, heads, size), and `k` and `v` (tokens, key heads, size).
    """
    of_queries, of_keys, group = np.zeros(len(q)), np.zeros(len(q)), len(weights) // k.shape[1]
    for head, a in enumerate(weights):
        keys, values = k[:, head // group], v[:, head // group]
        by_score = a[:, :, None] * (values[None] - (a @ values)[:, None])  # (queries, keys, size)
        of_queries += np.square(np.einsum("ije,jf->ief", by_score, keys)).sum(axis=(1, 2))
        of_keys += np.square(np.einsum("ije,if->ijef", by_score, q[:, head])).sum(axis=(0, 2, 3))
    return of_queries, of_keys


def weighted_inputs(points: Mapping[str, Array], layer: str) -> tuple[Array, Array]:
    """Return the inputs of a layer's queries and of its keys, (tokens, n), times the root of their sensitivities
    relative to the mean, from the points of a naive forward pass."""
    weights, x = points[f"{layer}attn_weights"], points[f"{layer}attn_norm"]
    q, k, v = (points[f"{layer}{name}"] for name in ("attn_q_rope", "attn_k_rope", "attn_v"))
    count_kv = k.shape[1] * len(weights) // q.shape[1]
    q, k, v = (each.reshape(len(x), n, -1) for each, n in ((q, len(weights)), (k, count_kv), (v, count_kv)))
    found = [x * np.sqrt(each / each.mean())[:, None] for each in sensitivities(weights, q, k, v)]
    return found[0], found[1]
