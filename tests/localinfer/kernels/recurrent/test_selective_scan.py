"""The selective scan, compared with float64: any split into batches, any number of threads."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

TOKENS = 13


@pytest.mark.parametrize(("n", "size"), [(64, 16), (48, 5), (16, 24)])
def test_the_scan_agrees_with_float64(n: int, size: int) -> None:
    rng = np.random.default_rng(n)
    x, step = rng.standard_normal((2, TOKENS, n), np.float32)
    b, c = rng.standard_normal((2, TOKENS, size), np.float32)
    a, skip = -np.exp(rng.standard_normal((n, size), np.float32)), rng.standard_normal(n, np.float32)
    state = np.zeros((n // 16, size, 16), np.float32)

    def run(first: int, end: int, threads: int) -> NDArray[np.float32]:
        y = np.full((end - first, n), np.nan, np.float32)
        arguments = {
            "tokens": np.array([end - first]), "x": x[first:end], "step": step[first:end], "b": b[first:end],
            "c": c[first:end], "a": a, "skip": skip, "n": n, "segments": np.array([1, end - first, 0, 0]),
            "state": state, "y": y,
        }  # fmt: skip
        kernels.run("localinfer.kernels.recurrent.selective_scan:selective_scan", arguments, threads, size=size)
        return y

    def expected() -> NDArray[np.float64]:
        states, y, dt = np.zeros((n, size)), skip * x.astype(np.float64), np.log1p(np.exp(step.astype(np.float64)))
        for t in range(TOKENS):
            states = np.exp(a * dt[t][:, None]) * states + np.outer(dt[t] * x[t], b[t])
            y[t] += states @ c[t]
        return y

    whole = run(0, TOKENS, 1)
    np.testing.assert_allclose(whole, expected(), rtol=0, atol=1e-5 * np.abs(whole).max())
    after = state.copy()
    state[:] = 0
    chunks = [run(first, end, 3) for first, end in ((0, 1), (1, 2), (2, 9), (9, TOKENS))]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    np.testing.assert_array_equal(state, after)
