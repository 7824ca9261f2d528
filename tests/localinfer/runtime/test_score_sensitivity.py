"""Derivatives of the outputs of attention heads, compared with differences of the outputs in float64."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from score_sensitivity import sensitivities

from localinfer.runtime.activations.score_sensitivity import ScoreSensitivity, scaled_rows

COUNT_KV, GROUP, KEY, VALUE, TOKENS, STEP = 2, 3, 4, 5, 6, 1e-5

Array = NDArray[np.float64]


def weights_of(q: Array, k: Array, sink: float) -> Array:
    """The weights of causal attention of one head, (tokens, tokens), beside a sink with the score `sink`."""
    scores = np.exp(np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf))
    weights: Array = scores / (scores.sum(axis=1, keepdims=True) + np.exp(sink))
    return weights


def squares_of(x: Array, y: Array, v: Array, sink: float, *, is_key: bool) -> Iterator[float]:
    """Yield the sum of the squares of the derivatives of a head's outputs in each row of x: its keys, if y are its
    queries, or its queries, if y are its keys."""
    for row in range(len(x)):
        total = 0.0
        for column in range(x.shape[1]):
            ends = []
            for step in (STEP, -STEP):
                changed = x.copy()
                changed[row, column] += step
                ends.append(weights_of(*((y, changed) if is_key else (changed, y)), sink) @ v)
            total += float(np.square((ends[0] - ends[1]) / (2 * STEP)).sum())
        yield total


@pytest.mark.parametrize("sink", [-np.inf, 0.5])
def test_sensitivities_match_differences(sink: float) -> None:
    random = np.random.default_rng(0)
    q = random.normal(size=(TOKENS, COUNT_KV, GROUP, KEY))
    k, v = random.normal(size=(TOKENS, COUNT_KV, KEY)), random.normal(size=(TOKENS, COUNT_KV, VALUE))
    rows = [each.reshape(TOKENS, -1).astype(np.float32) for each in (q, k, v)]
    weights = [np.stack([weights_of(q[:, h, g], k[:, h], sink) for g in range(GROUP)]) for h in range(COUNT_KV)]
    groups = [each.astype(np.float32) for each in weights]
    sensitivity = ScoreSensitivity(*rows)
    passed = sensitivity.observe(groups, COUNT_KV)
    assert all(each is group for each, group in zip(passed, groups, strict=True))
    heads = [(q[:, h, g], k[:, h], v[:, h]) for h in range(COUNT_KV) for g in range(GROUP)]
    queries = np.sum([[*squares_of(a, b, c, sink, is_key=False)] for a, b, c in heads], axis=0)
    keys = np.sum([[*squares_of(b, a, c, sink, is_key=True)] for a, b, c in heads], axis=0)
    oracle = sensitivities(np.concatenate(weights), q.reshape(TOKENS, -1, KEY), k, v)
    found = sensitivity.of_queries, sensitivity.of_keys
    for actual, exact, expected in zip(found, oracle, (queries, keys), strict=True):
        np.testing.assert_allclose(exact, expected, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(actual, exact, rtol=1e-4, atol=1e-5)


def test_scaled_rows_have_the_mean_weight_1() -> None:
    x = np.ones((4, 3), np.float32)
    np.testing.assert_allclose(np.square(scaled_rows(x, np.array([0.0, 1.0, 3.0, 0.0])))[:, 0], [0, 1, 3, 0], atol=1e-5)
    assert np.array_equal(scaled_rows(x, np.zeros(4)), x)
