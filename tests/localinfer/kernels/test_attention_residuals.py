"""The mean of residual streams that branches of Kimi K3 read, compared with float64."""

import kernels
import numpy as np
import pytest

from localinfer.naive.formulas import attend_streams

TOKENS, N, SLOTS, EPS = 5, 64, 3, 1e-3


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, SLOTS])
def test_means_of_streams(count: int, threads: int) -> None:
    rng = np.random.default_rng(count)
    x, earlier, weight = (
        rng.standard_normal(shape, np.float32) for shape in ((TOKENS, N), (TOKENS, SLOTS, N), (N,))
    )
    y, rows = np.empty_like(x), np.concatenate([earlier[:, :count], x[:, None]], axis=1).astype(np.float64)
    arguments = {
        "tokens": np.array([TOKENS]), "x": x, "earlier": earlier, "earlier_n": SLOTS * N, "count": count,
        "weight": weight, "n": N, "eps": EPS, "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.attention_residuals:attend_streams", arguments, threads)
    np.testing.assert_allclose(y, attend_streams(rows, weight, EPS), rtol=0, atol=2e-6)


def test_a_stream_alone_keeps_its_bits() -> None:
    x = np.random.default_rng(0).standard_normal((TOKENS, N), np.float32)
    y = np.empty_like(x)
    arguments = {
        "tokens": np.array([TOKENS]), "x": x, "earlier": x, "earlier_n": N, "count": 0, "weight": np.ones_like(x[0]),
        "n": N, "eps": EPS, "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.attention_residuals:attend_streams", arguments, 1)
    np.testing.assert_array_equal(y, x)
