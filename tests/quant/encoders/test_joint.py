"""Blocks whose codes stand for several columns: their errors passed on, against the same in float64."""

import gguf
import numpy as np
import pytest
from encoding import cruel_rows, decoded
from kernels import NUMBERS
from numpy.typing import NDArray

from localinfer import paths
from localinfer.files.weights import Decoder
from quant.encoders.covariance import Covariance
from quant.encoders.encode import Bytes, Encoder, Floats
from quant.encoders.joint import JOINT, WIDTH, JointFeedbackEncoder, JointLowRankEncoder, joint_gains_of
from quant.encoders.low_rank import DAMPING, LEAST, TRUST
from quant.encoders.triangle import Triangle, triangle_of

ROWS, N = 37, 768
SOME = ("IQ1_M", "IQ2_XXS", "IQ2_S", "IQ3_S")
RNG = np.random.default_rng(3)
DIRECTIONS = RNG.standard_normal((N, 4)).astype(np.float32) * np.array([1, 0.7, 0.4, 0.2], np.float32)
SQUARES = np.square(DIRECTIONS).sum(axis=1) + RNG.chisquare(1, N).astype(np.float32) + np.float32(0.01)


@pytest.fixture(scope="module")
def products() -> NDArray[np.float64]:
    """Of inputs that go together: a few directions have most of what there is."""
    turn, _ = np.linalg.qr(RNG.standard_normal((N, N)))
    inputs = RNG.standard_normal((3 * N, N)) * np.exp(-np.arange(N) / 100) @ turn
    return inputs.T @ inputs


@pytest.fixture(scope="module")
def weights() -> Floats:
    return RNG.standard_normal((ROWS, N)).astype(np.float32)


def triangle(h: NDArray[np.float64]) -> Triangle:
    """Of products that are believed."""
    return triangle_of(Covariance(h.astype(np.float32), 0.0, 2), trust=1.0, damping=0.0)


def encode(name: str, x: Floats, squares: Floats) -> Bytes:
    search = Encoder(NUMBERS[name], "normal", paths.jit_dir())
    out = np.empty((len(x), search.row_bytes(x.shape[1])), np.uint8)
    search.rows(np.ascontiguousarray(x), np.ascontiguousarray(squares, np.float32), out)
    return out


def with_feedback(name: str, x: Floats, h: NDArray[np.float64]) -> Bytes:
    decode, out = Decoder(NUMBERS[name]).rows, np.empty_like(encode(name, x, np.ones(N)))
    JointFeedbackEncoder(NUMBERS[name], triangle(h), decode, paths.jit_dir()).rows(x, out)
    return out


def with_directions(name: str, x: Floats, squares: Floats = SQUARES, directions: Floats = DIRECTIONS) -> Bytes:
    decode, out = Decoder(NUMBERS[name]).rows, np.empty_like(encode(name, x, np.ones(N)))
    JointLowRankEncoder(NUMBERS[name], joint_gains_of(squares, directions), decode, paths.jit_dir()).rows(x, out)
    return out


def same(a: Bytes, b: Bytes) -> float:
    """The share of bytes that are."""
    return float((a == b).mean())


@pytest.mark.parametrize("name", SOME)
def test_blocks_are_those_of_the_naive_way(name: str, products: NDArray[np.float64], weights: Floats) -> None:
    r = np.linalg.cholesky(products[::-1, ::-1])[::-1, ::-1]
    errors, expected = np.zeros((ROWS, N)), []
    for first in range(0, N, WIDTH):
        here = slice(first, first + WIDTH)
        shift = errors @ r[:, here] @ np.linalg.inv(r[here, here])
        costs = np.square(r[here, here]).sum(axis=1)
        expected.append(encode(name, (weights[:, here] + shift).astype(np.float32), costs.astype(np.float32)))
        back = gguf.dequantize(expected[-1], gguf.GGMLQuantizationType(NUMBERS[name]))
        errors[:, here] = weights[:, here] - back
    found = with_feedback(name, weights, products)
    assert same(found, np.concatenate(expected, axis=1)) > 0.9  # but for ties, and what follows


@pytest.mark.parametrize("name", sorted(JOINT))
def test_products_come_out_nearer(name: str, products: NDArray[np.float64], weights: Floats) -> None:
    plain, better = encode(name, weights, products.diagonal()), with_feedback(name, weights, products)
    errors = [decoded(name, out) - weights for out in (plain, better)]
    before, after = (np.einsum("ri,ij,rj", e, products, e) for e in errors)
    assert after < (1.0 if name.startswith("IQ1") else 0.75) * before


@pytest.mark.parametrize("name", SOME)
def test_directions_are_as_with_their_triangle(name: str, weights: Floats) -> None:
    size = SQUARES.mean(dtype=np.float64)
    u = np.sqrt(TRUST / size) * DIRECTIONS.astype(np.float64)
    d = SQUARES / size - np.square(u).sum(axis=1)
    h = np.diag(d + DAMPING * np.median(d) + LEAST) + u @ u.T
    assert same(with_directions(name, weights), with_feedback(name, weights, h)) > 0.9  # but for ties, and what follows


@pytest.mark.parametrize("name", sorted(JOINT))
def test_outputs_err_less_along_the_directions(name: str, weights: Floats) -> None:
    found = encode(name, weights, SQUARES), with_directions(name, weights)
    plain, kept = (decoded(name, out) - weights for out in found)
    power = SQUARES - TRUST * np.square(DIRECTIONS).sum(axis=1)
    before, after = (np.square(e) @ power + TRUST * np.square(e @ DIRECTIONS).sum(axis=1) for e in (plain, kept))
    assert after.sum() < 0.95 * before.sum()
    assert np.abs(kept @ DIRECTIONS[:, 0]).mean() < 0.7 * np.abs(plain @ DIRECTIONS[:, 0]).mean()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(JOINT))
def test_cruel_rows_become_finite_blocks(name: str) -> None:
    none, nowhere = np.zeros(N, np.float32), np.zeros((N, 4), np.float32)
    for x in cruel_rows():
        wide = np.ascontiguousarray(np.resize(x, (len(x), N)), np.float32)
        for squares, known in (
            (SQUARES, DIRECTIONS),
            (none, nowhere),
            (none, DIRECTIONS),
            (1e-30 * SQUARES, DIRECTIONS),
        ):
            assert np.isfinite(decoded(name, with_directions(name, wide, squares, known))).all()


def test_rows_are_encoded_by_themselves(weights: Floats, products: NDArray[np.float64]) -> None:
    for cut in (with_directions, lambda name, x: with_feedback(name, x, products)):
        parts = [cut("IQ3_S", weights[i : i + 16]) for i in range(0, ROWS, 16)]
        np.testing.assert_array_equal(np.concatenate(parts), cut("IQ3_S", weights))


def test_shapes_are_proven(weights: Floats, products: NDArray[np.float64]) -> None:
    number, decode = NUMBERS["IQ3_S"], Decoder(NUMBERS["IQ3_S"]).rows
    with pytest.raises(ValueError, match="no whole blocks"):
        JointFeedbackEncoder(number, triangle(products[:300, :300]), decode, paths.jit_dir())
    encoder = JointFeedbackEncoder(number, triangle(products), decode, paths.jit_dir())
    with pytest.raises(ValueError, match="a triangle of 768"):
        encoder.rows(weights[:, :512].copy(), np.zeros((ROWS, 220), np.uint8))
    with pytest.raises(ValueError, match="out is not"):
        encoder.rows(weights, np.zeros((ROWS, 220), np.uint8))
