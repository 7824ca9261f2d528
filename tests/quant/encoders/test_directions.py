"""The main directions of inputs, beside the singular values of all of them at once."""

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.encoders.directions import RANK, STRETCH, TOGETHER, Directions, largest_eigenvalues, main_rows

TOKENS, N = 4096, 600


def inputs(scale: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
    """With a mean, a column that is much larger than all others, and some ten directions of much power."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((N, 12)))[0].T
    x = rng.standard_normal((TOKENS, 12)) * np.geomspace(20, 4, 12) @ turn + rng.standard_normal((TOKENS, N)) + 0.5
    x[:, 7] *= 50
    return (scale * x).astype(np.float32)


def found(x: NDArray[np.float32], size: int = 512) -> Directions:
    directions = Directions.empty(x.shape[1])
    for first in range(0, len(x), size):
        directions.add(x[first : first + size])
    return directions


@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e15])
@pytest.mark.parametrize("size", [512, 100, 3])
def test_they_hold_what_all_inputs_hold(scale: float, size: int) -> None:
    x = inputs(scale)
    rows = found(x, size).rows.astype(np.float64) / scale
    assert rows.shape == (RANK, N)
    products = x.T.astype(np.float64) @ x / scale / scale
    strongest = np.linalg.eigh(products)[1][:, -13:]  # beside the twelve there is the large column
    kept, there = (np.einsum("ik,ij,jk->k", strongest, h, strongest) for h in (rows.T @ rows, products))
    np.testing.assert_allclose(kept, there, rtol=0.15)


def test_few_inputs_are_held_as_they_are() -> None:
    x = inputs()[: RANK - TOGETHER]
    few = main_rows(x)
    np.testing.assert_allclose(few.T @ few, x.T @ x, atol=1e-3 * np.abs(x.T @ x).max())
    narrow = found(inputs()[:, :5])
    assert len(narrow.rows) <= RANK
    assert narrow.rows.shape[1] == 5
    assert Directions.empty(5).rows.shape == (0, 5)
    nothing = found(np.zeros((STRETCH * TOGETHER, 5), np.float32))
    assert np.isfinite(nothing.rows).all()


@pytest.mark.parametrize("size", [1, 40, 160])
@pytest.mark.parametrize("decay", [0.99, 0.9, 0.5])
def test_the_largest_eigenvalues_are_those_of_all(size: int, decay: float) -> None:
    turn = np.linalg.qr(np.random.default_rng(size).standard_normal((size, size))).Q
    square = turn * decay ** np.arange(size) @ turn.T
    values, vectors = largest_eigenvalues(square)
    there = decay ** np.arange(min(size, RANK))
    np.testing.assert_allclose(values, there, rtol=0.2, atol=1e-12)
    assert np.sum(values) == pytest.approx(there.sum(), rel=0.1)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(there)), atol=1e-9)


def test_those_of_two_texts_are_those_of_both() -> None:
    one, two = inputs(), inputs(seed=1)
    both, together = found(one) + found(two), found(np.concatenate([one, two]))
    power = [np.square(each.rows.astype(np.float64)).sum() for each in (both, together)]
    assert power[0] == pytest.approx(power[1], rel=0.05)
    first, other = (np.square(each.rows[0]) for each in (both, together))
    np.testing.assert_allclose(first, other, rtol=0.1, atol=0.01 * first.max())
