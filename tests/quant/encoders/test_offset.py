"""Rounding that keeps the mean of outputs: against the same in plain numpy, and what it is good for."""

import numpy as np
import pytest
from encoding import GAUSSIAN, cruel_rows, decoded, encode
from kernels import NUMBERS

from localinfer import paths
from quant.encoders.offset import CARRYING, DAMPING, TRUST, OffsetEncoder, carried

RNG = np.random.default_rng(4)
N = 512
SQUARES = RNG.chisquare(1, N).astype(np.float32) + np.float32(0.01)
MANY = np.random.default_rng(5).standard_normal((90, N)).astype(np.float32)  # rows: more than go side by side
MEANS = (np.sqrt(SQUARES) * RNG.uniform(-1, 1, N)).astype(np.float32)


def rows(name: str, x: np.ndarray, squares: np.ndarray = SQUARES, means: np.ndarray = MEANS) -> np.ndarray:
    """Rows as blocks that keep the mean of outputs."""
    chosen = OffsetEncoder(NUMBERS[name], squares, means, paths.jit_dir())
    out = np.empty_like(encode(name, x))
    chosen.rows(np.ascontiguousarray(x), out)
    return out


def test_what_is_carried_is_that_of_the_triangle() -> None:
    """R R^T = H, A_ij = R_ij / R_jj, and R_jj^2 are the costs."""
    costs, shares, u = (each.astype(np.float64) for each in carried(SQUARES, MEANS))
    size = SQUARES.mean(dtype=np.float64)
    d = SQUARES / size - TRUST * np.square(MEANS, dtype=np.float64) / size
    h = np.diag(d + DAMPING * np.median(d)) + np.outer(u, u)
    r = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
    np.testing.assert_allclose(costs, np.square(r.diagonal()), rtol=1e-3)
    np.testing.assert_allclose(np.triu(np.outer(u, shares), 1), np.triu(r / r.diagonal(), 1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(CARRYING))
@pytest.mark.parametrize("count", [1, 64, 83])
def test_outputs_keep_their_mean(name: str, count: int) -> None:
    x = MANY[:count]
    plain, kept = (decoded(name, out) - x for out in (encode(name, x, SQUARES), rows(name, x)))
    power = SQUARES - TRUST * np.square(MEANS)
    before, after = (np.square(e) @ power + TRUST * np.square(e @ MEANS) for e in (plain, kept))
    assert after.sum() < (0.98 if count > 1 else 1.05) * before.sum()
    assert np.abs(kept @ MEANS).mean() < 0.35 * np.sqrt(np.square(plain) @ np.square(MEANS)).mean()


@pytest.mark.parametrize("name", ["Q4_1", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS"])
def test_codes_are_those_of_plain_numpy(name: str) -> None:
    """Column by column, with the scales that were found: the nearest value to what is wanted, but for ties."""
    x = GAUSSIAN[:5, :N]
    _, shares, u = carried(SQUARES, MEANS)
    found = decoded(name, rows(name, x)).astype(np.float64)
    offset, wanted = np.zeros(len(x)), np.empty_like(found)
    for j in range(N):
        wanted[:, j] = x[:, j] + offset * shares[j]
        offset += (x[:, j] - found[:, j]) * u[j]
    group = 16 if name == "Q3_K" else 32
    for values, targets in zip(found.reshape(-1, group), wanted.reshape(-1, group), strict=True):
        levels = np.unique(values)
        nearest = levels[np.abs(levels[:, None] - targets).argmin(axis=0)]
        assert (np.abs(values - targets) <= np.abs(nearest - targets) + 1e-4).all()


@pytest.mark.parametrize("name", sorted(CARRYING))
def test_cruel_rows_become_finite_blocks(name: str) -> None:
    none = np.zeros(N, np.float32)
    for x in cruel_rows():
        for squares, means in (
            (SQUARES, MEANS),
            (none, none),
            (none, MEANS),
            (SQUARES, 1e30 * MEANS),
            (1e-30 * SQUARES, MEANS),
        ):
            assert np.isfinite(decoded(name, rows(name, x, squares, means))).all()


def test_rows_are_encoded_by_themselves() -> None:
    x = MANY
    parts = [rows("Q4_K", x[i : i + 37]) for i in range(0, 90, 37)]
    np.testing.assert_array_equal(np.concatenate(parts), rows("Q4_K", x))


def test_without_means_codes_stay() -> None:
    x, none = GAUSSIAN[:16, :N], np.zeros(N, np.float32)
    costs, _, _ = carried(SQUARES, none)
    np.testing.assert_array_equal(rows("Q4_0", x, SQUARES, none), encode("Q4_0", x, costs))
