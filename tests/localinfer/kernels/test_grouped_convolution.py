"""The convolution of DFlash 2, compared with float64."""

import kernels
import numpy as np
import pytest


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("taps", "size"), [(2, 16), (5, 32), (9, 64)])
def test_filters_depend_on_the_token(taps: int, size: int, side: int, threads: int) -> None:
    tokens, n = 7, 64
    random = np.random.default_rng(taps)
    x, base = random.standard_normal((tokens, n), np.float32), random.standard_normal((2, taps, n), np.float32)
    dynamic, y = random.standard_normal((tokens, 2, taps, n // size), np.float32), np.empty_like(x)
    expected = np.zeros((tokens, n))
    for token in range(tokens):
        for tap in range(min(taps, token + 1)):
            factor = base[side, tap].astype(np.float64) + np.repeat(dynamic[token, side, tap], size)
            expected[token] += factor * x[token - tap]
    arguments = {"x": x, "base": base, "dynamic": dynamic, "side": side, "taps": taps, "size": size, "n": n, "y": y}
    name = "localinfer.kernels.grouped_convolution:convolve_groups"
    kernels.run(name, {"tokens": np.array([tokens]), **arguments}, threads)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5)
