"""Principal components of inputs, compared with the singular values of all inputs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.encoders.principal_components import (
    RANK,
    SUMS_PER_UPDATE,
    TOKENS_PER_SUM,
    PrincipalComponents,
    largest_eigenvalues,
    principal_rows,
)

TOKENS, N = 4096, 600


def inputs(scale: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
    """Inputs with a mean, a column that is much larger than the others, and about ten strong components."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((N, 12)))[0].T
    x = rng.standard_normal((TOKENS, 12)) * np.geomspace(20, 4, 12) @ rotation + rng.standard_normal((TOKENS, N)) + 0.5
    x[:, 7] *= 50
    return (scale * x).astype(np.float32)


def components_of(x: NDArray[np.float32], size: int = 512) -> PrincipalComponents:
    components = PrincipalComponents.empty(x.shape[1])
    for first in range(0, len(x), size):
        components.add(x[first : first + size])
    return components


@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e15])
@pytest.mark.parametrize("size", [512, 100, 3])
def test_components_match_full_decomposition(scale: float, size: int) -> None:
    x = inputs(scale)
    rows = components_of(x, size).rows.astype(np.float64) / scale
    assert rows.shape == (RANK, N)
    products = x.T.astype(np.float64) @ x / scale / scale
    strongest = np.linalg.eigh(products)[1][:, -13:]  # the twelve components and the large column
    remaining, there = (np.einsum("ik,ij,jk->k", strongest, h, strongest) for h in (rows.T @ rows, products))
    np.testing.assert_allclose(remaining, there, rtol=0.15)


def test_few_inputs_are_exact() -> None:
    x = inputs()[: RANK - TOKENS_PER_SUM]
    few = principal_rows(x)
    np.testing.assert_allclose(few.T @ few, x.T @ x, atol=1e-3 * np.abs(x.T @ x).max())
    narrow = components_of(inputs()[:, :5])
    assert len(narrow.rows) <= RANK
    assert narrow.rows.shape[1] == 5
    assert PrincipalComponents.empty(5).rows.shape == (0, 5)
    nothing = components_of(np.zeros((SUMS_PER_UPDATE * TOKENS_PER_SUM, 5), np.float32))
    assert np.isfinite(nothing.rows).all()


@pytest.mark.parametrize("size", [1, 40, 160])
@pytest.mark.parametrize("decay", [0.99, 0.9, 0.5])
def test_largest_eigenvalues_match_eigh(size: int, decay: float) -> None:
    rotation = np.linalg.qr(np.random.default_rng(size).standard_normal((size, size))).Q
    square = rotation * decay ** np.arange(size) @ rotation.T
    values, vectors = largest_eigenvalues(square)
    there = decay ** np.arange(min(size, RANK))
    np.testing.assert_allclose(values, there, rtol=0.2, atol=1e-12)
    assert np.sum(values) == pytest.approx(there.sum(), rel=0.1)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(there)), atol=1e-9)


def test_sum_of_two_texts() -> None:
    one, two = inputs(), inputs(seed=1)
    both, batched = components_of(one) + components_of(two), components_of(np.concatenate([one, two]))
    power = [np.square(each.rows.astype(np.float64)).sum() for each in (both, batched)]
    assert power[0] == pytest.approx(power[1], rel=0.05)
    first, other = (np.square(each.rows[0]) for each in (both, batched))
    np.testing.assert_allclose(first, other, rtol=0.1, atol=0.01 * first.max())
