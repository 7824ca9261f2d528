"""GPTQ: `quant.encoders.feedback` against a float64 numpy reference, column by column."""

from typing import Any

import gguf
import numpy as np
import pytest
from kernels import NUMBERS
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from localinfer import paths
from quant.encoders.cholesky import CholeskyFactor, cholesky_upper, factorize
from quant.encoders.covariance import Covariance
from quant.encoders.encoder import Encoder
from quant.encoders.feedback import DESCENT_SWEEPS, SCALAR_TYPES, FeedbackEncoder, is_scalar_type
from quant.ggml import TYPES

Floats = NDArray[np.float32]
ROWS, N = 37, 768


@pytest.fixture(scope="module")
def inputs() -> NDArray[np.float64]:
    """Correlated inputs: a few components have most of the power."""
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((N, N)))
    return rng.standard_normal((3 * N, N)) * np.exp(-np.arange(N) / 100) @ rotation


@pytest.fixture(scope="module")
def weights() -> Floats:
    return np.random.default_rng(1).standard_normal((ROWS, N)).astype(np.float32)


def factor_of(covariance: NDArray[np.float64], trust: float = 0.6, **more: float) -> CholeskyFactor:
    """Return the factor of products on which two chunks agree. The products are overwritten."""
    products = covariance.astype(np.float32)
    agreed = float(np.square(products * (1 - np.eye(len(products))), dtype=np.float64).sum()) / 2
    return factorize(Covariance(products, agreed, 2), trust=trust, **more)


def encoded(name: str, weights: Floats, triangle: CholeskyFactor) -> NDArray[np.uint8]:
    kind = TYPES[NUMBERS[name]]
    out = np.zeros((len(weights), weights.shape[1] // kind.elements * kind.bytes), np.uint8)
    FeedbackEncoder(NUMBERS[name], triangle, paths.jit_dir()).encode(weights, out)
    return out


def decoded(name: str, rows: NDArray[np.uint8]) -> Floats:
    return np.asarray(gguf.dequantize(rows, gguf.GGMLQuantizationType(NUMBERS[name])), np.float32)


def test_factor_reproduces_covariance(inputs: NDArray[np.float64]) -> None:
    covariance = inputs.T @ inputs
    actual = factor_of(covariance, trust=0.7, damping=0.02)
    r = (np.triu(actual.unit_upper, 1).astype(np.float64) + np.eye(N)) * np.sqrt(actual.costs, dtype=np.float64)
    diagonal = covariance.diagonal()
    h = 0.7 * covariance + np.diag(0.3 * diagonal + 0.02 * diagonal.mean())
    assert abs(r @ r.T - h).max() < 1e-5 * abs(h).max()


def test_scaled_inputs_have_the_scaled_covariance(inputs: NDArray[np.float64], weights: Floats) -> None:
    """Errors that are divided by the scales of the inputs cost the same, in float64 and in blocks of the factor."""
    covariance = inputs.T @ inputs
    scales = np.exp(np.random.default_rng(3).normal(0, 0.5, N)).astype(np.float32)
    factor, h = factor_of(covariance, trust=0.5, damping=0.0), (covariance + np.diag(covariance.diagonal())) / 2
    errors = weights.astype(np.float64)
    expected = np.einsum("ri,ij,rj->", errors, h, errors, optimize=True)
    assert factor.cost(weights) == pytest.approx(expected, rel=1e-4)
    factor.scale_inputs(scales)
    assert factor.cost(weights / scales) == pytest.approx(expected, rel=1e-4)
    scaled = factor_of(covariance * scales * scales[:, None], trust=0.5, damping=0.0)
    np.testing.assert_allclose(factor.costs, scaled.costs, rtol=1e-4)
    for actual, desired in zip(factor.diagonal_blocks, scaled.diagonal_blocks, strict=True):
        np.testing.assert_allclose(np.triu(actual), np.triu(desired), rtol=1e-5)


def test_shrunk_products_are_not_propagated(inputs: NDArray[np.float64]) -> None:
    products = (inputs.T @ inputs).astype(np.float32)
    actual = factorize(Covariance(products.copy(), 1e30, 2), damping=0.0)
    assert not np.triu(actual.unit_upper, 1).any()
    np.testing.assert_allclose(actual.costs, products.diagonal(), rtol=1e-5)


def test_factor_matches_numpy_for_any_number_of_threads() -> None:
    """With several blocks, the last one partial; values below the diagonal are ignored."""
    n = 1200
    x = np.random.default_rng(2).standard_normal((2 * n, n)) * np.exp(-np.arange(n) / 300)
    h = x.T @ x + np.eye(n)
    expected = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
    actual = [(np.triu(h) + np.tril(np.full((n, n), 7.0), -1)).astype(np.float32) for _ in range(2)]
    with threadpool_limits(1, "blas"):
        for threads, each in enumerate(actual, 1):
            cholesky_upper(each, threads)
    assert np.array_equal(*actual)
    assert abs(np.triu(actual[0]) - expected).max() < 1e-5 * abs(expected).max()


def test_unused_columns() -> None:
    covariance = np.zeros((64, 64))
    covariance[:9, :9] = np.eye(9) + 0.5
    for products in (covariance, np.zeros((64, 64))):
        actual = factor_of(products)
        assert np.isfinite(actual.unit_upper).all()
        assert (actual.costs > 0).all()


def test_indefinite_products_are_rejected() -> None:
    for products in (np.full((64, 64), np.nan), np.eye(64) - 5, np.full((64, 64), np.inf)):
        with pytest.raises(np.linalg.LinAlgError):
            factor_of(products)


# --- numpy reference: takes the scales from the blocks and recomputes the codes ---


def scales_of(name: str, rows: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64], int, int]:
    """For every row and column the scale and the offset; then the code of zero, and the number of codes."""
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
def test_codes_match_float64_reference(name: str, inputs: NDArray[np.float64], weights: Floats) -> None:
    actual = factor_of(inputs.T @ inputs)
    rows = encoded(name, weights, actual)
    scale, minimum, zero, codes = scales_of(name, rows)
    fractions = np.triu(actual.unit_upper, 1).astype(np.float64)
    expected = np.zeros(weights.shape)

    def rounded(j: int, more: NDArray[np.float64]) -> None:
        inverse = np.divide(1, scale[:, j], out=np.zeros(ROWS), where=scale[:, j] != 0)
        code = np.clip(np.rint((weights[:, j] + more - minimum[:, j]) * inverse) + zero, 0, codes - 1)
        expected[:, j] = (code - zero) * scale[:, j] + minimum[:, j]

    for j in range(N):
        rounded(j, (weights - expected)[:, :j] @ fractions[:j, j])
    h = (fractions + np.eye(N)) * actual.costs @ (fractions + np.eye(N)).T
    for _ in range(DESCENT_SWEEPS):
        for j in range(N):
            errors = weights - expected
            errors[:, j] = 0
            rounded(j, errors @ h[:, j] / h[j, j])
    same = np.isclose(decoded(name, rows), expected, rtol=1e-3, atol=1e-4)
    assert same.mean() > 0.99, "but for weights that lie half way, and what follows from them"


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_feedback_reduces_output_error(name: str, inputs: NDArray[np.float64], weights: Floats) -> None:
    covariance = inputs.T @ inputs
    search = Encoder(NUMBERS[name], "normal", paths.jit_dir())
    plain = np.zeros((ROWS, search.row_bytes(N)), np.uint8)
    search.encode(weights, np.ascontiguousarray(covariance.diagonal(), np.float32), plain)
    rows = encoded(name, weights, factor_of(covariance, trust=1.0))
    with_feedback, without = (
        np.square((decoded(name, actual) - weights) @ inputs.T).mean() for actual in (rows, plain)
    )
    assert with_feedback < 0.5 * without


def test_rows_are_independent(inputs: NDArray[np.float64], weights: Floats) -> None:
    known = factor_of(inputs.T @ inputs)
    whole = encoded("Q4_K", weights, known)
    chunks = [encoded("Q4_K", weights[first : first + 16], known) for first in range(0, ROWS, 16)]
    assert (whole == np.concatenate(chunks)).all()


def test_codebook_formats_are_not_scalar() -> None:
    assert {name for name, number in NUMBERS.items() if is_scalar_type(number)} == set(SCALAR_TYPES)


def test_wrong_shapes_are_rejected(weights: Floats) -> None:
    encoder = FeedbackEncoder(NUMBERS["Q4_0"], factor_of(np.eye(N)), paths.jit_dir())
    with pytest.raises(ValueError, match="whole blocks"):
        encoder.encode(weights[:, :40].copy(), np.zeros((ROWS, 22), np.uint8))
    with pytest.raises(ValueError, match="Cholesky factor"):
        encoder.encode(weights[:, :64].copy(), np.zeros((ROWS, 36), np.uint8))
    with pytest.raises(ValueError, match="out is not"):
        encoder.encode(weights, np.zeros((ROWS, 18), np.uint8))
