"""AltUp and Gaussian top-k gates, compared with float64."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TOKENS, COUNT, N = 5, 3, 64


def run(name: str, threads: int, **arguments: object) -> None:
    all_arguments = {"tokens": np.array([TOKENS]), **arguments}
    kernels.run(f"localinfer.kernels.altup:{name}", all_arguments, threads)


def random(*shape: int) -> Floats:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("threads", [1, 3])
def test_streams_are_predicted_and_corrected(threads: int) -> None:
    x, m, y, scale = random(TOKENS, COUNT, N), random(TOKENS, COUNT), random(TOKENS, N), random(N)
    weight, predicted, first = random(COUNT * COUNT, COUNT), np.empty_like(x), np.empty_like(y)
    run("predict", threads, x=x, m=m, weight=weight, count=COUNT, n=N, predicted=predicted, first=first)
    expected = x + (m @ weight.T).reshape(TOKENS, COUNT, COUNT).astype(np.float64) @ x
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(first, predicted[:, 0])

    corrected, weight = np.empty_like(x), weight[:COUNT].copy()
    shared = {"y": y, "predicted": predicted, "m": m, "weight": weight, "scale": scale, "count": COUNT, "n": N}
    run("correct", threads, **shared, x=corrected, first=first)
    expected = predicted + (1 + m @ weight.T.astype(np.float64))[:, :, None] * (y - predicted[:, 0])[:, None]
    np.testing.assert_allclose(corrected, expected, rtol=0, atol=5e-5)
    np.testing.assert_array_equal(first, corrected[:, 0] * scale)

    before = corrected.copy()
    run("add_to_inactive", threads, branch=y, count=COUNT, n=N, x=corrected)
    np.testing.assert_array_equal(corrected, before + np.array([0, 1, 1], np.float32)[:, None] * y[:, None])


def test_copy_slice_and_match_rms() -> None:
    x, y = random(TOKENS, COUNT * N), np.empty((TOKENS, N), np.float32)
    run("copy_slice", 2, x=x, x_n=COUNT * N, x_first=N, n=N, y=y, y_n=N, y_first=0)
    np.testing.assert_array_equal(y, x[:, N : 2 * N])
    other = random(N, TOKENS).T.copy()
    other[0] = 0  # stays 0
    expected = other * np.sqrt((y**2).mean(axis=1) / np.maximum((other**2).mean(axis=1), 1e-5))[:, None]
    run("match_rms", 2, x=y, n=N, y=other)
    np.testing.assert_allclose(other, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("deviations", [-1.0, 0.0, 1.6448536])
def test_gaussian_topk(deviations: float) -> None:
    x = random(TOKENS, N) + 1
    x[0] = 2.5  # all values are equal
    expected = np.maximum(x - x.mean(axis=1, keepdims=True) - deviations * x.std(axis=1, keepdims=True), 0)
    run("gaussian_topk", 2, deviations=deviations, n=N, x=x)
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-6)
