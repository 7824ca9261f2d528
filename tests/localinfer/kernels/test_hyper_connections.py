"""Hyper-connections: weights of residual streams, their sum and their mixture, compared with float64."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.graph.properties.hyper_connections import HyperConnections
from localinfer.naive.formulas import weigh_streams

Floats = NDArray[np.float32]
TOKENS, COUNT, N = 5, 3, 64
MIXED = HyperConnections(COUNT, 1e-3, iterations=4)
UNMIXED = HyperConnections(COUNT, 1e-2, magnitude=1.5, output_eps=1e-2)


def run(name: str, threads: int, **arguments: object) -> None:
    all_arguments = {"tokens": np.array([TOKENS]), "count": COUNT, **arguments}
    kernels.run(f"localinfer.kernels.hyper_connections:{name}", all_arguments, threads)


def random(*shape: int) -> Floats:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize(
    ("shape", "n"),
    [(MIXED, MIXED.n_logits), (UNMIXED, UNMIXED.n_logits), (MIXED, COUNT)],
    ids=["mixed", "unmixed", "sum only"],
)
def test_weights_of_streams(shape: HyperConnections, n: int) -> None:
    logits, base, scale = random(TOKENS, n), random(n), np.array([0.5, 2, 3], np.float32)
    scales = np.repeat(scale, [COUNT, COUNT, COUNT**2])[:n]
    expected = weigh_streams(logits.astype(np.float64) * scales + base, shape)
    constants = {"eps": shape.eps, "magnitude": shape.magnitude, "output_eps": shape.output_eps}
    run("weigh_streams", 2, base=base, scale=scale, n=n, **constants, iterations=shape.iterations, x=logits)
    np.testing.assert_allclose(logits, expected, rtol=2e-6, atol=1e-6)


def test_a_mixing_matrix_has_rows_and_columns_of_sum_one() -> None:
    shape = HyperConnections(COUNT, 1e-6, iterations=100)
    weights = weigh_streams(random(TOKENS, shape.n_logits).astype(np.float64), shape)
    matrix = weights[:, 2 * COUNT :].reshape(TOKENS, COUNT, COUNT)
    for axis in (1, 2):
        np.testing.assert_allclose(matrix.sum(axis=axis), 1, rtol=0, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n_weights", [2 * COUNT, COUNT * (2 + COUNT)])
def test_streams_are_summed_and_mixed(threads: int, n_weights: int) -> None:
    x, y, weights, collapsed = random(TOKENS, COUNT, N), random(TOKENS, N), random(TOKENS, n_weights), random(TOKENS, N)
    run("collapse", threads, x=x, weights=weights, n_weights=n_weights, n=N, y=collapsed)
    equal, mean = np.full(COUNT, 1 / COUNT, np.float32), random(TOKENS, N)
    run("collapse", threads, x=x, weights=equal, n_weights=0, n=N, y=mean)
    np.testing.assert_allclose(mean, x.mean(axis=1, dtype=np.float64), rtol=0, atol=1e-6)
    exact = weights.astype(np.float64)
    np.testing.assert_allclose(collapsed, np.einsum("ts,tsn->tn", exact[:, :COUNT], x), rtol=0, atol=1e-5)

    of_output, matrix = exact[:, COUNT : 2 * COUNT], exact[:, 2 * COUNT :].reshape(TOKENS, -1, COUNT)
    mixed = np.einsum("tij,tin->tjn", matrix, x) if matrix.size else x
    expected = mixed + of_output[:, :, None] * y[:, None]
    run("mix", threads, y=y, weights=weights, n_weights=n_weights, n=N, x=x)
    np.testing.assert_allclose(x, expected, rtol=0, atol=2e-5)
