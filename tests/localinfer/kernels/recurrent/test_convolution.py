"""Causal convolutions, compared with float64: any width, any split into batches, any number of threads."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def convolve(
    x: Floats, weight: Floats, tail: Floats, activation: str, bias: Floats | None, dilation: int, threads: int
) -> Floats:
    """Run the kernel, which updates the tail."""
    y = np.full_like(x, np.nan)
    arguments = {
        "tokens": np.array([len(x)]), "x": x, "weight": weight, "bias": 0 if bias is None else bias,
        "width": weight.shape[1], "dilation": dilation, "n": x.shape[1], "segments": np.array([1, len(x), 0, 0]),
        "tail": tail, "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.recurrent.convolution:convolve", arguments, threads, activation=activation)
    return y


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("width", "n", "biased", "dilation"),
    [(3, 96, False, 1), (4, 160, True, 1), (1, 32, False, 1), (7, 224, True, 1), (4, 96, True, 3), (2, 32, False, 5)],
)
def test_convolution_agrees_with_float64(width: int, n: int, biased: bool, dilation: int, threads: int) -> None:
    rng = np.random.default_rng(width)
    x, weight = rng.standard_normal((11, n), np.float32), rng.standard_normal((n, width), np.float32)
    bias = rng.standard_normal(n, np.float32) if biased else None
    rows_before = dilation * (width - 1)
    before = np.concatenate([np.zeros((rows_before, n)), x])
    sums = sum(before[dilation * age :][: len(x)] * weight[:, age] for age in range(width))
    sums += 0 if bias is None else bias
    expected = sums / (1 + np.exp(-sums)) if biased else sums
    activation = "silu" if biased else "none"

    tail = np.zeros((rows_before, n), np.float32)
    whole = convolve(x, weight, tail, activation, bias, dilation, threads)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(tail, x[len(x) - rows_before :])

    tail[:] = 0
    ranges = (0, 1), (1, 3), (3, 10), (10, 11)
    chunks = [convolve(x[a:b], weight, tail, activation, bias, dilation, threads) for a, b in ranges]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
