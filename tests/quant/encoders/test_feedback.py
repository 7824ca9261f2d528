"""Rounding that passes its errors on: `quant.encoders.feedback` against the same in numpy, column by column in
float64."""

from typing import Any

import gguf
import numpy as np
import pytest
from kernels import NUMBERS
from numpy.typing import NDArray

from localinfer import paths
from quant.encoders.encode import Encoder
from quant.encoders.feedback import UNIFORM, FeedbackEncoder, takes_feedback, triangle_of
from quant.ggml import TYPES

Floats = NDArray[np.float32]
ROWS, N = 37, 768


@pytest.fixture(scope="module")
def inputs() -> NDArray[np.float64]:
    """Inputs that go together: a few directions have most of what there is."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.standard_normal((N, N)))
    return rng.standard_normal((3 * N, N)) * np.exp(-np.arange(N) / 100) @ turn


@pytest.fixture(scope="module")
def weights() -> Floats:
    return np.random.default_rng(1).standard_normal((ROWS, N)).astype(np.float32)


def encoded(name: str, weights: Floats, triangle: Floats) -> NDArray[np.uint8]:
    kind = TYPES[NUMBERS[name]]
    out = np.zeros((len(weights), weights.shape[1] // kind.elements * kind.bytes), np.uint8)
    FeedbackEncoder(NUMBERS[name], triangle, paths.jit_dir()).rows(weights, out)
    return out


def decoded(name: str, rows: NDArray[np.uint8]) -> Floats:
    return np.asarray(gguf.dequantize(rows, gguf.GGMLQuantizationType(NUMBERS[name])), np.float32)


def test_the_triangle_is_that_of_the_inverse(inputs: NDArray[np.float64]) -> None:
    covariance = inputs.T @ inputs
    u = triangle_of(covariance, trust=0.7, damping=0.02).astype(np.float64)
    assert not np.tril(u, -1).any()
    diagonal = covariance.diagonal()
    h = 0.7 * covariance + np.diag(0.3 * diagonal + 0.02 * diagonal.mean())
    assert abs(u.T @ u @ h - np.eye(N)).max() < 1e-4


def test_columns_that_were_never_used_do_no_harm() -> None:
    covariance = np.zeros((64, 64), np.float32)
    covariance[:9, :9] = np.eye(9) + 0.5
    assert np.isfinite(triangle_of(covariance)).all()
    assert np.isfinite(triangle_of(np.zeros((64, 64), np.float32))).all()


def test_what_is_no_covariance_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        triangle_of(np.full((64, 64), np.nan, np.float32))
    with pytest.raises(np.linalg.LinAlgError):
        triangle_of(np.eye(64) - 5)


# --- a twin: the scales are those that the blocks have, the codes are found again ---


def scales_of(name: str, rows: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64], int, int]:
    """For every row and column: the scale, and what is added; then the code that is zero, and the number of codes."""
    count = len(rows)

    def wide(values: Any, group: int) -> NDArray[np.float64]:
        return np.repeat(np.asarray(values, np.float64).reshape(count, -1), group, axis=1)

    if name == "Q6_K":
        blocks = rows.reshape(-1, 210)
        d = blocks[:, 208:].copy().view(np.float16).astype(np.float64)
        return wide(d * blocks[:, 192:208].view(np.int8), 16), wide(0 * d, 256), 32, 64
    blocks = rows.reshape(-1, TYPES[NUMBERS[name]].bytes)
    d = blocks[:, :2].copy().view(np.float16)
    if name == "Q5_1":
        return wide(d, 32), wide(blocks[:, 2:4].copy().view(np.float16), 32), 0, 32
    zero, codes = {"Q4_0": (8, 16), "Q8_0": (128, 256)}[name]
    return wide(d, 32), wide(0 * d, 32), zero, codes


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q6_K"])
def test_codes_are_those_of_the_naive_way(name: str, inputs: NDArray[np.float64], weights: Floats) -> None:
    u = triangle_of(inputs.T @ inputs)
    rows = encoded(name, weights, u)
    scale, least, zero, codes = scales_of(name, rows)
    rest, expected = weights.astype(np.float64), np.zeros(weights.shape)
    for i in range(N):
        inverse = np.divide(1, scale[:, i], out=np.zeros(ROWS), where=scale[:, i] != 0)
        code = np.clip(np.rint((rest[:, i] - least[:, i]) * inverse) + zero, 0, codes - 1)
        expected[:, i] = (code - zero) * scale[:, i] + least[:, i]
        error = (rest[:, i] - expected[:, i]) / u[i, i]
        rest[:, i:] -= np.outer(error, u[i, i:])
    same = np.isclose(decoded(name, rows), expected, rtol=1e-3, atol=1e-4)
    assert same.mean() > 0.99, "but for weights that lie half way, and what follows from them"


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K"])
def test_products_come_out_nearer(name: str, inputs: NDArray[np.float64], weights: Floats) -> None:
    covariance = inputs.T @ inputs
    search = Encoder(NUMBERS[name], "max", paths.jit_dir())
    plain = np.zeros((ROWS, search.row_bytes(N)), np.uint8)
    search.rows(weights, np.ascontiguousarray(covariance.diagonal(), np.float32), plain)
    rows = encoded(name, weights, triangle_of(covariance, trust=1.0))
    with_feedback, without = (np.square((decoded(name, found) - weights) @ inputs.T).mean() for found in (rows, plain))
    assert with_feedback < 0.5 * without


def test_rows_do_not_depend_on_how_they_are_cut(inputs: NDArray[np.float64], weights: Floats) -> None:
    u = triangle_of(inputs.T @ inputs)
    whole = encoded("Q4_K", weights, u)
    parts = [encoded("Q4_K", weights[first : first + 16], u) for first in range(0, ROWS, 16)]
    assert (whole == np.concatenate(parts)).all()


def test_formats_with_tables_take_none() -> None:
    assert {name for name, number in NUMBERS.items() if takes_feedback(number)} == set(UNIFORM)


def test_shapes_are_proven(weights: Floats) -> None:
    encoder = FeedbackEncoder(NUMBERS["Q4_0"], np.eye(N, dtype=np.float32), paths.jit_dir())
    with pytest.raises(ValueError, match="whole blocks"):
        encoder.rows(weights[:, :40].copy(), np.zeros((ROWS, 22), np.uint8))
    with pytest.raises(ValueError, match="triangle"):
        encoder.rows(weights[:, :64].copy(), np.zeros((ROWS, 36), np.uint8))
    with pytest.raises(ValueError, match="out is not"):
        encoder.rows(weights, np.zeros((ROWS, 18), np.uint8))
