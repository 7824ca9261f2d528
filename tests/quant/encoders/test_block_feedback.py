"""Error feedback between blocks of codebook formats, compared with a float64 reference."""

import gguf
import numpy as np
import pytest
from encoding import adversarial_rows, decoded
from kernels import NUMBERS
from numpy.typing import NDArray

from localinfer import paths
from localinfer.gguf.dequantize import Decoder
from quant.encoders.block_feedback import (
    BLOCK_WIDTH,
    CODEBOOK_TYPES,
    BlockFeedbackEncoder,
    BlockLowRankEncoder,
    compute_block_gains,
)
from quant.encoders.cholesky import CholeskyFactor, factorize
from quant.encoders.covariance import Covariance
from quant.encoders.encoder import Bytes, Encoder, Floats
from quant.encoders.low_rank import DAMPING, MIN_DIAGONAL, TRUST

ROWS, N = 37, 768
SOME = ("IQ1_M", "IQ2_XXS", "IQ2_S", "IQ3_S")
RNG = np.random.default_rng(3)
COMPONENTS = RNG.standard_normal((N, 4)).astype(np.float32) * np.array([1, 0.7, 0.4, 0.2], np.float32)
SQUARES = np.square(COMPONENTS).sum(axis=1) + RNG.chisquare(1, N).astype(np.float32) + np.float32(0.01)


@pytest.fixture(scope="module")
def products() -> NDArray[np.float64]:
    """Products of correlated inputs: a few components have most of the power."""
    rng = np.random.default_rng(3)  # one of its own: IQ1_S gains little, and must not depend on the order of tests
    rotation, _ = np.linalg.qr(rng.standard_normal((N, N)))
    inputs = rng.standard_normal((3 * N, N)) * np.exp(-np.arange(N) / 100) @ rotation
    return inputs.T @ inputs


@pytest.fixture(scope="module")
def weights() -> Floats:
    return np.random.default_rng(19).standard_normal((ROWS, N)).astype(np.float32)


def factor_of(h: NDArray[np.float64]) -> CholeskyFactor:
    """Return the factor of products without shrinkage."""
    return factorize(Covariance(h.astype(np.float32), 0.0, 2), trust=1.0, damping=0.0)


def encode(name: str, x: Floats, squares: Floats) -> Bytes:
    search = Encoder(NUMBERS[name], "normal", paths.jit_dir())
    out = np.empty((len(x), search.row_bytes(x.shape[1])), np.uint8)
    search.encode(np.ascontiguousarray(x), np.ascontiguousarray(squares, np.float32), out)
    return out


def with_feedback(name: str, x: Floats, h: NDArray[np.float64]) -> Bytes:
    decode, out = Decoder(NUMBERS[name]).rows, np.empty_like(encode(name, x, np.ones(N)))
    BlockFeedbackEncoder(NUMBERS[name], factor_of(h), decode, paths.jit_dir()).encode(x, out)
    return out


def with_components(name: str, x: Floats, squares: Floats = SQUARES, components: Floats = COMPONENTS) -> Bytes:
    decode, out = Decoder(NUMBERS[name]).rows, np.empty_like(encode(name, x, np.ones(N)))
    BlockLowRankEncoder(NUMBERS[name], compute_block_gains(squares, components), decode, paths.jit_dir()).encode(x, out)
    return out


def byte_agreement(a: Bytes, b: Bytes) -> float:
    """Return the fraction of equal bytes."""
    return float((a == b).mean())


@pytest.mark.parametrize("name", SOME)
def test_blocks_match_float64_reference(name: str, products: NDArray[np.float64], weights: Floats) -> None:
    r = np.linalg.cholesky(products[::-1, ::-1])[::-1, ::-1]
    errors, expected = np.zeros((ROWS, N)), []
    for first in range(0, N, BLOCK_WIDTH):
        here = slice(first, first + BLOCK_WIDTH)
        shift = errors @ r[:, here] @ np.linalg.inv(r[here, here])
        costs = np.square(r[here, here]).sum(axis=1)
        expected.append(encode(name, (weights[:, here] + shift).astype(np.float32), costs.astype(np.float32)))
        back = gguf.dequantize(expected[-1], gguf.GGMLQuantizationType(NUMBERS[name]))
        errors[:, here] = weights[:, here] - back
    actual = with_feedback(name, weights, products)
    assert byte_agreement(actual, np.concatenate(expected, axis=1)) > 0.9  # except ties and their consequences


@pytest.mark.parametrize("name", sorted(CODEBOOK_TYPES))
def test_feedback_reduces_output_error(name: str, products: NDArray[np.float64], weights: Floats) -> None:
    plain, better = encode(name, weights, products.diagonal()), with_feedback(name, weights, products)
    errors = [decoded(name, out) - weights for out in (plain, better)]
    before, after = (np.einsum("ri,ij,rj", e, products, e) for e in errors)
    assert after < (1.0 if name.startswith("IQ1") else 0.75) * before


@pytest.mark.parametrize("name", SOME)
def test_components_match_their_cholesky_factor(name: str, weights: Floats) -> None:
    size = SQUARES.mean(dtype=np.float64)
    u = np.sqrt(TRUST / size) * COMPONENTS.astype(np.float64)
    d = SQUARES / size - np.square(u).sum(axis=1)
    h = np.diag(d + DAMPING * np.median(d) + MIN_DIAGONAL) + u @ u.T
    assert (
        byte_agreement(with_components(name, weights), with_feedback(name, weights, h)) > 0.9
    )  # except ties and their consequences


@pytest.mark.parametrize("name", sorted(CODEBOOK_TYPES))
def test_low_rank_feedback_reduces_output_error(name: str, weights: Floats) -> None:
    actual = encode(name, weights, SQUARES), with_components(name, weights)
    plain, remaining = (decoded(name, out) - weights for out in actual)
    power = SQUARES - TRUST * np.square(COMPONENTS).sum(axis=1)
    before, after = (np.square(e) @ power + TRUST * np.square(e @ COMPONENTS).sum(axis=1) for e in (plain, remaining))
    assert after.sum() < 0.95 * before.sum()
    assert np.abs(remaining @ COMPONENTS[:, 0]).mean() < 0.7 * np.abs(plain @ COMPONENTS[:, 0]).mean()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(CODEBOOK_TYPES))
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    none, nowhere = np.zeros(N, np.float32), np.zeros((N, 4), np.float32)
    for x in adversarial_rows():
        wide = np.ascontiguousarray(np.resize(x, (len(x), N)), np.float32)
        for squares, known in (
            (SQUARES, COMPONENTS),
            (none, nowhere),
            (none, COMPONENTS),
            (1e-30 * SQUARES, COMPONENTS),
        ):
            assert np.isfinite(decoded(name, with_components(name, wide, squares, known))).all()


def test_rows_are_independent(weights: Floats, products: NDArray[np.float64]) -> None:
    for cut in (with_components, lambda name, x: with_feedback(name, x, products)):
        chunks = [cut("IQ3_S", weights[i : i + 16]) for i in range(0, ROWS, 16)]
        np.testing.assert_array_equal(np.concatenate(chunks), cut("IQ3_S", weights))


def test_wrong_shapes_are_rejected(weights: Floats, products: NDArray[np.float64]) -> None:
    number, decode = NUMBERS["IQ3_S"], Decoder(NUMBERS["IQ3_S"]).rows
    with pytest.raises(ValueError, match="not whole blocks"):
        BlockFeedbackEncoder(number, factor_of(products[:300, :300]), decode, paths.jit_dir())
    encoder = BlockFeedbackEncoder(number, factor_of(products), decode, paths.jit_dir())
    with pytest.raises(ValueError, match="a factor of 768"):
        encoder.encode(weights[:, :512].copy(), np.zeros((ROWS, 220), np.uint8))
    with pytest.raises(ValueError, match="out is not"):
        encoder.encode(weights, np.zeros((ROWS, 220), np.uint8))
