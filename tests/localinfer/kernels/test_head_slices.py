"""Products of heads, and gates of heads that follow from them, compared with float64."""

import kernels
import numpy as np
import pytest

from localinfer.naive.formulas import ACTIVATIONS


@pytest.mark.parametrize("threads", [1, 3])
def test_products_of_heads_and_gates_of_heads_agree_with_float64(threads: int) -> None:
    rng, tokens, heads, size = np.random.default_rng(1), 5, 3, 48
    x, other = (rng.standard_normal((tokens, heads, size), np.float32) for _ in range(2))
    x[0, 0] = 0  # whose gate is exactly 1/2
    x[1, 1] *= 1e-9
    y = np.full((tokens, heads), np.nan, np.float32)
    shape = {"tokens": np.array([tokens]), "size": size, "heads": heads}
    kernels.run("localinfer.kernels.head_slices:dot_heads", shape | {"x": x, "other": other, "y": y}, threads)
    np.testing.assert_allclose(y, np.einsum("thn,thn->th", x.astype(np.float64), other), rtol=1e-5, atol=1e-5)

    expected = x * ACTIVATIONS["sigmoid_of_root"](y.astype(np.float64))[:, :, None]
    arguments = {"tokens": shape["tokens"], "gate": y, "heads": heads, "size": size, "x": x}
    kernels.run("localinfer.kernels.activations:gate_heads", arguments, threads, activation="sigmoid_of_root")
    np.testing.assert_allclose(x, expected, rtol=2e-6, atol=1e-12)
