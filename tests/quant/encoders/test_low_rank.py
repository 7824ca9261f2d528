"""Errors that are made up for in a few directions: against the same in plain numpy, and what it is good for."""

import numpy as np
import pytest
from encoding import GAUSSIAN, cruel_rows, decoded, encode
from kernels import NUMBERS
from numpy.typing import NDArray

from localinfer import paths
from quant.encoders.low_rank import CARRYING, DAMPING, LEAST, MOST, STEP, TRUST, LowRankEncoder, gains_of, tables_of

RNG = np.random.default_rng(4)
N, RANK = 512, 5
DIRECTIONS = RNG.standard_normal((N, RANK)).astype(np.float32) * np.array([1, 0.6, 0.4, 0.3, 0.1], np.float32)
SQUARES = np.square(DIRECTIONS).sum(axis=1) + RNG.chisquare(1, N).astype(np.float32) + np.float32(0.01)
MANY = np.random.default_rng(5).standard_normal((90, N)).astype(np.float32)  # rows: more than go side by side


def rows(name: str, x: np.ndarray, squares: np.ndarray = SQUARES, directions: np.ndarray = DIRECTIONS) -> np.ndarray:
    """Rows as blocks whose errors are made up for."""
    out = np.empty_like(encode(name, x))
    encoder = LowRankEncoder(NUMBERS[name], paths.jit_dir())
    encoder.rows(np.ascontiguousarray(x), tables_of(squares, directions, paths.jit_dir()), out)
    return out


def products() -> NDArray[np.float64]:
    """What is believed of the products of inputs: (N, N)."""
    h = TRUST * DIRECTIONS.astype(np.float64) @ DIRECTIONS.T
    return h + np.diag(SQUARES - h.diagonal())


def test_gains_are_those_of_the_triangle() -> None:
    """R R^T = H, U K^T = A above the diagonal, with A_ij = R_ij / R_jj, and R_jj^2 are the costs."""
    found, size = gains_of(SQUARES, DIRECTIONS, paths.jit_dir()), SQUARES.mean(dtype=np.float64)
    h = products() / size
    d = h.diagonal() - TRUST / size * np.square(DIRECTIONS, dtype=np.float64).sum(axis=1)
    h += np.eye(N) * (DAMPING * np.median(d) + LEAST)
    r = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
    np.testing.assert_allclose(found.costs, np.square(r.diagonal()), rtol=1e-9)
    np.testing.assert_allclose(
        np.triu(found.directions @ found.gains.T, 1), np.triu(r / r.diagonal(), 1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(CARRYING))
def test_products_come_out_nearer(name: str) -> None:
    plain, mended = (decoded(name, out) - MANY for out in (encode(name, MANY, SQUARES), rows(name, MANY)))
    before, after = (np.einsum("ri,ij,rj", e, products(), e) for e in (plain, mended))
    assert after < 0.75 * before
    assert np.abs(mended @ DIRECTIONS[:, 0]).mean() < 0.35 * np.abs(plain @ DIRECTIONS[:, 0]).mean()


@pytest.mark.parametrize("name", ["Q4_1", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS"])
def test_codes_are_those_of_plain_numpy(name: str) -> None:
    """Column by column, with the scales that were found: the nearest value to what is wanted, but for ties."""
    x, known = GAUSSIAN[:5, :N], gains_of(SQUARES, DIRECTIONS, paths.jit_dir())
    found = decoded(name, rows(name, x)).astype(np.float64)
    carried, wanted = np.zeros((len(x), RANK)), np.empty_like(found)
    for j in range(N):
        wanted[:, j] = x[:, j] + carried @ known.gains[j]
        carried += np.outer(x[:, j] - found[:, j], known.directions[j])
    group = 16 if name == "Q3_K" else 32
    for values, targets in zip(found.reshape(-1, group), wanted.reshape(-1, group), strict=True):
        levels = np.unique(values)
        nearest = levels[np.abs(levels[:, None] - targets).argmin(axis=0)]
        assert (np.abs(values - targets) <= np.abs(nearest - targets) + 1e-4).all()


@pytest.mark.parametrize("name", sorted(CARRYING))
def test_cruel_rows_become_finite_blocks(name: str) -> None:
    none, nowhere = np.zeros(N, np.float32), np.zeros((N, RANK), np.float32)
    for x in cruel_rows():
        for squares, directions in (
            (SQUARES, DIRECTIONS),
            (none, nowhere),
            (none, DIRECTIONS),
            (SQUARES, 1e30 * DIRECTIONS),
            (1e-30 * SQUARES, DIRECTIONS),
        ):
            assert np.isfinite(decoded(name, rows(name, x, squares, directions))).all()


@pytest.mark.parametrize("count", [1, 37, 64])
def test_rows_are_encoded_by_themselves(count: int) -> None:
    parts = [rows("Q4_K", MANY[i : i + count]) for i in range(0, len(MANY), count)]
    np.testing.assert_array_equal(np.concatenate(parts), rows("Q4_K", MANY))


@pytest.mark.parametrize("rank", [0, 1])
def test_without_directions_codes_stay(rank: int) -> None:
    x, none = GAUSSIAN[:16, :N], np.zeros((N, rank), np.float32)
    costs = gains_of(SQUARES, none, paths.jit_dir()).costs.astype(np.float32)
    np.testing.assert_array_equal(rows("Q4_0", x, SQUARES, none), encode("Q4_0", x, costs))


def test_narrow_rows_and_many_directions() -> None:
    x, many = MANY[:, :96], np.zeros((96, MOST), np.float32)
    many[:, :RANK] = DIRECTIONS[:96]
    assert 96 % STEP == 0
    few = rows("Q4_0", x, SQUARES[:96], DIRECTIONS[:96])
    np.testing.assert_array_equal(rows("Q4_0", x, SQUARES[:96], many), few)
    with pytest.raises(ValueError, match="at most 256"):
        rows("Q4_0", x, SQUARES[:96], np.zeros((96, MOST + 1), np.float32))
