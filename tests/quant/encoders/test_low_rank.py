"""Low-rank error feedback: against plain numpy, and its effect on the output error."""

import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode
from kernels import NUMBERS
from numpy.typing import NDArray

from localinfer import paths
from quant.encoders.low_rank import (
    COLUMN_STEP,
    DAMPING,
    LOW_RANK_TYPES,
    MAX_RANK,
    MIN_DIAGONAL,
    TRUST,
    LowRankEncoder,
    compute_gains,
    make_tables,
)

RNG = np.random.default_rng(4)
N, RANK = 512, 5
COMPONENTS = RNG.standard_normal((N, RANK)).astype(np.float32) * np.array([1, 0.6, 0.4, 0.3, 0.1], np.float32)
SQUARES = np.square(COMPONENTS).sum(axis=1) + RNG.chisquare(1, N).astype(np.float32) + np.float32(0.01)
MANY = (
    np.random.default_rng(5).standard_normal((90, N)).astype(np.float32)
)  # more rows than the kernel processes at once


def encoded_rows(
    name: str, x: np.ndarray, squares: np.ndarray = SQUARES, components: np.ndarray = COMPONENTS
) -> np.ndarray:
    """Encode rows with low-rank error feedback."""
    out = np.empty_like(encode(name, x))
    encoder = LowRankEncoder(NUMBERS[name], paths.jit_dir())
    encoder.encode(np.ascontiguousarray(x), make_tables(squares, components, paths.jit_dir()), out)
    return out


def products() -> NDArray[np.float64]:
    """The modelled products of inputs, (N, N)."""
    h = TRUST * COMPONENTS.astype(np.float64) @ COMPONENTS.T
    return h + np.diag(SQUARES - h.diagonal())


def test_gains_match_cholesky_factor() -> None:
    """R R^T = H, U K^T = A above the diagonal, with A_ij = R_ij / R_jj, and R_jj^2 are the costs."""
    actual, size = compute_gains(SQUARES, COMPONENTS, paths.jit_dir()), SQUARES.mean(dtype=np.float64)
    h = products() / size
    d = h.diagonal() - TRUST / size * np.square(COMPONENTS, dtype=np.float64).sum(axis=1)
    h += np.eye(N) * (DAMPING * np.median(d) + MIN_DIAGONAL)
    r = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
    np.testing.assert_allclose(actual.costs, np.square(r.diagonal()), rtol=1e-9)
    np.testing.assert_allclose(
        np.triu(actual.components @ actual.gains.T, 1), np.triu(r / r.diagonal(), 1), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("name", sorted(LOW_RANK_TYPES))
def test_correction_reduces_output_error(name: str) -> None:
    plain, mended = (decoded(name, out) - MANY for out in (encode(name, MANY, SQUARES), encoded_rows(name, MANY)))
    before, after = (np.einsum("ri,ij,rj", e, products(), e) for e in (plain, mended))
    assert after < 0.75 * before
    assert np.abs(mended @ COMPONENTS[:, 0]).mean() < 0.35 * np.abs(plain @ COMPONENTS[:, 0]).mean()


@pytest.mark.parametrize("name", ["Q4_1", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS"])
def test_codes_match_numpy(name: str) -> None:
    """Column by column with the given scales: the code nearest to each target, except ties."""
    x, known = GAUSSIAN[:5, :N], compute_gains(SQUARES, COMPONENTS, paths.jit_dir())
    actual = decoded(name, encoded_rows(name, x)).astype(np.float64)
    carried, expected = np.zeros((len(x), RANK)), np.empty_like(actual)
    for j in range(N):
        expected[:, j] = x[:, j] + carried @ known.gains[j]
        carried += np.outer(x[:, j] - actual[:, j], known.components[j])
    group = 16 if name == "Q3_K" else 32
    for values, targets in zip(actual.reshape(-1, group), expected.reshape(-1, group), strict=True):
        levels = np.unique(values)
        nearest = levels[np.abs(levels[:, None] - targets).argmin(axis=0)]
        assert (np.abs(values - targets) <= np.abs(nearest - targets) + 1e-4).all()


@pytest.mark.parametrize("name", sorted(LOW_RANK_TYPES))
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    none, nowhere = np.zeros(N, np.float32), np.zeros((N, RANK), np.float32)
    for x in adversarial_rows():
        for squares, components in (
            (SQUARES, COMPONENTS),
            (none, nowhere),
            (none, COMPONENTS),
            (SQUARES, 1e30 * COMPONENTS),
            (1e-30 * SQUARES, COMPONENTS),
        ):
            assert np.isfinite(decoded(name, encoded_rows(name, x, squares, components))).all()


@pytest.mark.parametrize("count", [1, 37, 64])
def test_rows_are_independent(count: int) -> None:
    chunks = [encoded_rows("Q4_K", MANY[i : i + count]) for i in range(0, len(MANY), count)]
    np.testing.assert_array_equal(np.concatenate(chunks), encoded_rows("Q4_K", MANY))


@pytest.mark.parametrize("rank", [0, 1])
def test_zero_components_change_no_codes(rank: int) -> None:
    x, none = GAUSSIAN[:16, :N], np.zeros((N, rank), np.float32)
    costs = compute_gains(SQUARES, none, paths.jit_dir()).costs.astype(np.float32)
    np.testing.assert_array_equal(encoded_rows("Q4_0", x, SQUARES, none), encode("Q4_0", x, costs))


def test_narrow_rows_and_many_components() -> None:
    x, many = MANY[:, :96], np.zeros((96, MAX_RANK), np.float32)
    many[:, :RANK] = COMPONENTS[:96]
    assert 96 % COLUMN_STEP == 0
    few = encoded_rows("Q4_0", x, SQUARES[:96], COMPONENTS[:96])
    np.testing.assert_array_equal(encoded_rows("Q4_0", x, SQUARES[:96], many), few)
    with pytest.raises(ValueError, match="at most 256"):
        encoded_rows("Q4_0", x, SQUARES[:96], np.zeros((96, MAX_RANK + 1), np.float32))
