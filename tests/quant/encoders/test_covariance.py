"""The shrinkage of covariances: `quant.encoders.covariance` against the formula of the paper, chunk by chunk."""

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from quant.encoders.covariance import DEFAULT_SHRINKAGE, Covariance

CHUNKS, TOKENS, N = 6, 40, 1100


def chunks(shared: float, seed: int = 0) -> list[NDArray[np.float32]]:
    """Inputs of several chunks: a `shared` part is correlated everywhere, and one column is much larger."""
    rng = np.random.default_rng(seed)
    actual = [rng.standard_normal((TOKENS, N)) + shared * rng.standard_normal((TOKENS, 1)) for _ in range(CHUNKS)]
    for x in actual:
        x[:, 5] *= 300
    return [x.astype(np.float32) for x in actual]


def summed(pieces: list[NDArray[np.float32]], threads: int = 1) -> Covariance:
    covariance = Covariance.empty(N)
    for x in pieces:
        covariance.add(x, threads)
    return covariance


def naive_shrinkage(pieces: list[NDArray[np.float32]]) -> float:
    """The variance of the mean of S_c, the mean of x x^T over a chunk, over the square of that mean."""
    means = [x.T.astype(np.float64) @ x / TOKENS for x in pieces]
    for s in means:
        np.fill_diagonal(s, 0)
    mean = np.mean(means, axis=0)
    variance = sum(np.square(s - mean).sum() for s in means) / (CHUNKS * (CHUNKS - 1))
    return float(np.clip(variance / np.square(mean).sum(), 0, 1))


@pytest.mark.parametrize("shared", [0.0, 0.1, 0.5, 3.0])
def test_shrinkage_matches_the_paper(shared: float) -> None:
    pieces = chunks(shared)
    assert summed(pieces).shrinkage == pytest.approx(naive_shrinkage(pieces), rel=1e-4)


def test_chance_correlations_are_shrunk() -> None:
    assert summed(chunks(0.0)).shrinkage > 0.9
    assert summed(chunks(3.0)).shrinkage < 0.1


def test_upper_triangle_is_summed() -> None:
    pieces = chunks(0.5)
    x = np.concatenate(pieces).astype(np.float64)
    expected = np.triu(x.T @ x)
    assert abs(np.triu(summed(pieces).products) - expected).max() < 1e-6 * expected.max()


def test_result_is_independent_of_threads() -> None:
    with threadpool_limits(1, "blas"):
        one, two = (summed(chunks(0.5), threads) for threads in (1, 2))
    assert np.array_equal(one.products, two.products)
    assert one.chunk_squares == two.chunk_squares


def test_sums_of_two_texts() -> None:
    pieces = chunks(0.5)
    both, whole = summed(pieces[:2]) + summed(pieces[2:]), summed(pieces)
    assert both.chunks == CHUNKS
    assert both.shrinkage == pytest.approx(whole.shrinkage, rel=1e-5)


def test_single_chunk_has_default_shrinkage() -> None:
    assert summed(chunks(0.5)[:1]).shrinkage == DEFAULT_SHRINKAGE


def test_no_inputs() -> None:
    assert summed([np.zeros((TOKENS, N), np.float32)] * 2).shrinkage == 1
