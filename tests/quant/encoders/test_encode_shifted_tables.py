"""Encoders of IQ2_K to IQ6_K, whose groups choose one of two tables: all codes are tried, other formats compared."""

import encoding_errors as errors
import gguf
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode

from localinfer.naive.tensor_types import SHIFTED

# The bytes of a block that only hold codes, and the k-quant of about the same size.
CODES = {
    "IQ2_K": range(12, 76),
    "IQ3_K": range(14, 110),
    "IQ4_K": range(16, 144),
    "IQ5_K": range(16, 176),
    "IQ6_K": range(20, 212),
}
SCALES = {"IQ2_K": (-8, 6), "IQ3_K": (-31, 17), "IQ4_K": (-32, 24), "IQ5_K": (-32, 24), "IQ6_K": (-128, 96)}
LIKE = {"IQ3_K": "Q3_K", "IQ4_K": "Q4_K", "IQ5_K": "Q5_K", "IQ6_K": "Q6_K"}


@pytest.mark.parametrize("name", CODES)
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    for x in adversarial_rows():
        for importance in (None, np.zeros_like(x[0]), np.full_like(x[0], 1e38), np.full_like(x[0], 1e-42)):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("sample", ["gaussian", "heavy_tailed"])
def test_error_is_less_than_that_of_a_k_quant(name: str, sample: str) -> None:
    """The error of unlike table steps is less than that of even ones, at the same size."""
    x = getattr(errors, sample)()
    weight = errors.importance(x.shape[1])
    for importance in (None, weight):
        w = np.ones_like(weight) if importance is None else weight
        both = (decoded(each, encode(each, x, importance)) for each in (name, LIKE[name]))
        ours, other = (errors.relative_error(x, y, w) for y in both)
        assert ours < 0.95 * other


@pytest.mark.parametrize("name", CODES)
def test_codes_are_nearest(name: str) -> None:
    """Try all values of some bytes that hold codes, with the scales and tables that were chosen."""
    rng = np.random.default_rng(5)
    x, weight = GAUSSIAN[:3, :256], errors.importance(256)
    counts = naive_encode.error_weights(x, weight, 16, 256, strength=1.0)
    for row, count, chosen in zip(x, counts, encode(name, x, weight), strict=True):
        minimum = errors.relative_error(row, decoded(name, chosen[None])[0], count)
        for position in rng.choice(CODES[name], 10):
            others = np.tile(chosen, (256, 1))
            others[:, position] = range(256)
            assert min(errors.relative_error(row, y, count) for y in decoded(name, others)) >= 0.999999 * minimum


@pytest.mark.parametrize("name", CODES)
def test_values_of_the_tables_are_exact(name: str) -> None:
    """Groups of numbers of either table, times a scale of their own, are represented exactly."""
    _, numbers, shift = SHIFTED[name]
    rng = np.random.default_rng(3)
    ends = np.array([numbers[0], numbers[-1]])
    rows = rng.choice(numbers, (4, 16, 16))
    rows[:, :, :2] = ends
    rows += shift * rng.integers(0, 2, (4, 16, 1))
    x = (rows * rng.choice(SCALES[name], (4, 16, 1)) * 0.25).astype(np.float32).reshape(4, 256)
    y = decoded(name, encode(name, x))
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("name", CODES)
def test_both_tables_are_used(name: str) -> None:
    rows = encode(name, GAUSSIAN[:8, :1024]).reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1])
    share = np.unpackbits(rows[:, 2:4]).mean()
    assert 0.2 < share < 0.8
