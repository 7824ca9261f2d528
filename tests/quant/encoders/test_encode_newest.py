"""Encoders of NVFP4, Q1_0 and Q2_0, against numpy references that follow ggml's definitions."""

import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode
from kernels import Bytes, Floats

NAMES = ["NVFP4", "Q1_0", "Q2_0"]
KVALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
E4M3 = np.array([m / 512 if not e else 2.0 ** (e - 7) * (1 + m / 8) for e in range(16) for m in range(8)], np.float32)
E4M3[0x7F] = 0


def scale_of_ggml(x: Floats) -> int:
    """Return the code of the E4M3 number nearest to a sixth of the largest magnitude; ties go to the larger one."""
    expected = min(np.abs(x).max() / np.float32(6), np.float32(448))
    distance = np.abs(E4M3[:0x7F].astype(np.float64) - expected)
    return int(0x7E - np.argmin(distance[::-1]))


def nvfp4_of_ggml(x: Floats) -> Bytes:
    blocks = np.zeros((x.size // 64, 36), np.uint8)
    for number, group in enumerate(x.reshape(-1, 16)):
        d = scale_of_ggml(group)
        positions = np.abs(KVALUES * E4M3[d] / 2 - group[:, None]).argmin(axis=1).astype(np.uint8)
        block, quarter = blocks[number // 4], number % 4
        block[quarter] = d
        block[4 + 8 * quarter : 12 + 8 * quarter] = positions[:8] | positions[8:] << 4
    return blocks.reshape(len(x), -1)


def squared_error(name: str, x: Floats, weight: Floats, rows: Bytes) -> float:
    return float((weight * (x - decoded(name, rows)) ** 2).sum())


@pytest.mark.parametrize("size", [1.0, 1e-3, 40.0])
def test_fast_nvfp4_matches_ggml(size: float) -> None:
    x = np.float32(size) * GAUSSIAN[:6, :768]
    np.testing.assert_array_equal(encode("NVFP4", x, effort="fast"), nvfp4_of_ggml(x))


@pytest.mark.parametrize("weighted", [False, True])
def test_searched_nvfp4_scales_reduce_error(weighted: bool) -> None:
    x = GAUSSIAN[:6, :768]
    weight = np.random.default_rng(1).uniform(0.01, 2, 768).astype(np.float32) if weighted else np.ones(768, np.float32)
    actual = squared_error("NVFP4", x, weight, encode("NVFP4", x, weight if weighted else None))
    assert actual < 0.9 * squared_error("NVFP4", x, weight, nvfp4_of_ggml(x))


def test_q1_0_scale_is_mean_magnitude() -> None:
    x, weight = GAUSSIAN[:6, :640], np.random.default_rng(1).uniform(0, 2, 640).astype(np.float32)
    for counts in (None, weight):
        w = np.ones(640) if counts is None else counts
        sizes, weights = (each.reshape(-1, 5, 128) for each in (np.abs(x), np.broadcast_to(w, x.shape)))
        means = (sizes * weights).sum(axis=2) / weights.sum(axis=2)
        y = decoded("Q1_0", encode("Q1_0", x, counts))
        np.testing.assert_array_equal(y < 0, x < 0)
        np.testing.assert_allclose(np.abs(y).reshape(-1, 5, 128)[:, :, 0], means, rtol=1e-3)


def test_q2_0_is_exact_for_its_values() -> None:
    """Representable values are exact, whether or not twice the scale occurs."""
    rng = np.random.default_rng(2)
    for values in ([-1, 0, 1], [-1, 0, 1, 2]):
        x = (rng.choice(values, (4, 640)) * rng.choice([0.25, -3.0], (4, 10)).repeat(64, axis=1)).astype(np.float32)
        np.testing.assert_array_equal(decoded("Q2_0", encode("Q2_0", x)), x)


def test_q2_0_error_is_near_optimal() -> None:
    """The optimum for four even steps and normal numbers is 0.1188 of the variance (Max, 1960); here the offset is
    fixed."""
    x = GAUSSIAN[:, :1024]
    assert squared_error("Q2_0", x, np.ones(1024, np.float32), encode("Q2_0", x)) < 0.13 * float((x**2).sum())


@pytest.mark.parametrize("name", NAMES)
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    for x in adversarial_rows():
        for importance in (None, np.zeros_like(x[0]), np.full_like(x[0], 1e38), np.full_like(x[0], 1e-42)):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()
