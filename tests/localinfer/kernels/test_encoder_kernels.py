"""Kernels that only encoders of images use, compared with float64."""

import kernels
import naive_math
import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def random(*shape: int) -> Floats:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_averaged(threads: int) -> None:
    x, y = random(12, 48), np.empty((5, 48), np.float32)
    numbers = np.random.default_rng(1).integers(0, 12, (5, 3), np.int32)
    arguments = {"tokens": np.array([5]), "x": x, "numbers": numbers, "count": 3, "n": 48, "y": y}
    kernels.run("localinfer.kernels.residual:average_rows", arguments, threads)
    expected = naive_math.average_rows(x.astype(np.float64), numbers)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


def test_gelu_quick() -> None:
    x = np.concatenate([random(3, 48) * 4, np.full((1, 48), -200, np.float32), np.full((1, 48), 200, np.float32)])
    gate = x.copy()
    arguments = {"tokens": np.array([5]), "up": 0, "up_n": 0, "up_first": 0, "n": 48, "gate": gate, "q": 0}
    constants = {"activation": "gelu_quick", "tile": 0, "passes": 1}
    kernels.run("localinfer.kernels.activations:gated_activation", arguments, 2, **constants)
    np.testing.assert_allclose(gate, naive_math.gelu_quick(x.astype(np.float64)), rtol=1e-6, atol=1e-6)
