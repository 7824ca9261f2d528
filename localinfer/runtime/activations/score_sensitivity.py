"""How strongly the outputs of attention heads depend on the queries and keys of each token.

A head with the weights a_ij returns o_i = sum_j a_ij v_j. If the score of token j changes by s for the query of token
i, o_i changes by a_ij (v_j - o_i) s, and the score is the product of the query q_i and the key k_j. So the derivatives
are, up to the scale of the scores,

    do_i / dq_i = sum_j a_ij (v_j - o_i) k_j^T,        do_i / dk_j = a_ij (v_j - o_i) q_i^T

and an error in the query or the key of a token costs in proportion to the sum of their squares. Where all weight of a
token is on one other, as on an attention sink, errors of its scores have little effect.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SMALLEST = 1e-6  # of the mean over tokens, added to each


class ScoreSensitivity:
    """Sums, over the heads of a layer, the squares of the derivatives of their outputs: `of_queries` and `of_keys`,
    (tokens,).

    `q`, `k` and `v` are those of the layer, float32 (tokens, heads * size), head after head.
    """

    def __init__(self, q: Floats, k: Floats, v: Floats) -> None:
        self._q, self._k, self._v = q, k, v
        self.of_queries, self.of_keys = np.zeros(len(q)), np.zeros(len(q))

    def observe(self, groups: Iterable[Floats], count_kv: int) -> Iterator[Floats]:
        """Yield the weights of the query heads of each of `count_kv` key heads, (group, tokens, tokens), and add
        their derivatives."""
        parts = (np.split(each, count_kv, axis=1) for each in (self._q, self._k, self._v))
        for weights, q, k, v in zip(groups, *parts, strict=True):
            products = (k @ k.T) * (v @ v.T)
            for a, queries in zip(weights, np.split(q, len(weights), axis=1), strict=True):
                outputs, keys = a @ v, a @ k
                with_values = outputs @ v.T
                self.of_queries += squares_of_queries(a, products, with_values * (keys @ k.T), outputs, keys)
                self.of_keys += squares_of_keys(a, queries, v, outputs, with_values)
            yield weights

    def scaled(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the inputs of queries and those of keys, (tokens, n): x times the root of their sensitivities."""
        return scaled_rows(x, self.of_queries), scaled_rows(x, self.of_keys)


def scaled_rows(x: Floats, squares: NDArray[np.float64]) -> Floats:
    """Return x, (tokens, n), with each row times the root of its element of `squares`, (tokens,), relative to their
    mean."""
    mean = squares.mean()
    weights = squares / mean + SMALLEST if mean > 0 else np.ones(len(x))
    scaled: Floats = x * np.sqrt(weights)[:, None].astype(np.float32)
    return scaled


def squares_of_queries(a: Floats, products: Floats, mixed: Floats, outputs: Floats, keys: Floats) -> Floats:
    """Return |sum_j a_ij (v_j - o_i) k_j^T|^2 for each token i.

    `products` are those of keys times those of values, `mixed` those of outputs and values times those of averaged
    keys and keys, both (tokens, tokens).
    """
    with_outputs = np.square(outputs).sum(axis=1) * np.square(keys).sum(axis=1)
    squares: Floats = np.maximum(np.einsum("ij,ij->i", a, a @ products - 2 * mixed) + with_outputs, 0)
    return squares


def squares_of_keys(a: Floats, q: Floats, v: Floats, outputs: Floats, with_values: Floats) -> Floats:
    """Return sum_i |a_ij (v_j - o_i) q_i^T|^2 for each token j. `with_values` are the products of outputs and values,
    (tokens, tokens)."""
    distances = np.square(outputs).sum(axis=1)[:, None] + np.square(v).sum(axis=1) - 2 * with_values
    squares: Floats = np.square(q).sum(axis=1) @ (np.square(a) * np.maximum(distances, 0))
    return squares
