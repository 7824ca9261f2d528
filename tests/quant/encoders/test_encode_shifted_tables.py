"""Encoders of IQ2_K to IQ6_K, IQ2_KS to IQ5_KS and IQ4_KSS, whose groups choose one of two tables: all codes are tried,
other formats compared."""

import encoding_errors as errors
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode

from localinfer.naive.tensor_types import SHIFTED, SHIFTED_ROWS
from quant.ggml import TYPE_NUMBERS, TYPES

# The bytes of a row of one block that only hold codes, and the k-quant of about the same size.
CODES = {
    "IQ2_K": range(12, 76),
    "IQ3_K": range(14, 110),
    "IQ4_K": range(16, 144),
    "IQ5_K": range(16, 176),
    "IQ6_K": range(20, 212),
    "IQ2_KS": range(8, 72),
    "IQ3_KS": range(8, 104),
    "IQ4_KS": range(12, 140),
    "IQ5_KS": range(12, 172),
}
SCALES = {
    "IQ2_K": (-8, 6), "IQ3_K": (-31, 17), "IQ4_K": (-32, 24), "IQ5_K": (-32, 24), "IQ6_K": (-128, 96),
    "IQ2_KS": (-16, 12), "IQ3_KS": (-16, 12), "IQ4_KS": (-127, 95), "IQ5_KS": (-127, 95),
}  # fmt: skip
LIKE = {"IQ3_K": "Q3_K", "IQ4_K": "Q4_K", "IQ5_K": "Q5_K", "IQ6_K": "Q6_K"}


def group_size(name: str) -> int:
    """Return the columns of a group."""
    return 32 if name in SHIFTED_ROWS else 16


@pytest.mark.parametrize("name", [*CODES, "IQ4_KSS"])
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
    counts = naive_encode.error_weights(x, weight, group_size(name), 256, strength=1.0)
    for row, count, chosen in zip(x, counts, encode(name, x, weight), strict=True):
        minimum = errors.relative_error(row, decoded(name, chosen[None])[0], count)
        for position in rng.choice(CODES[name], 10):
            others = np.tile(chosen, (256, 1))
            others[:, position] = range(256)
            assert min(errors.relative_error(row, y, count) for y in decoded(name, others)) >= 0.999999 * minimum


@pytest.mark.parametrize("name", CODES)
def test_values_of_the_tables_are_exact(name: str) -> None:
    """Groups of numbers of either table, times a scale of their own, are represented exactly."""
    _, numbers, shift = {**SHIFTED, **SHIFTED_ROWS}[name]
    groups = 256 // group_size(name)
    rng = np.random.default_rng(3)
    ends = np.array([numbers[0], numbers[-1]])
    rows = rng.choice(numbers, (4, groups, 256 // groups))
    rows[:, :, :2] = ends
    rows += shift * rng.integers(0, 2, (4, groups, 1))
    x = (rows * rng.choice(SCALES[name], (4, groups, 1)) * 0.25).astype(np.float32).reshape(4, 256)
    y = decoded(name, encode(name, x))
    rounding = 1e-6 if TYPES[TYPE_NUMBERS[name]].header == 4 else 0  # a float32 d is not rounded to fewer digits
    np.testing.assert_allclose(y, x, rtol=rounding)


@pytest.mark.parametrize("name", [*CODES, "IQ4_KSS"])
def test_both_tables_are_used(name: str) -> None:
    kind = TYPES[TYPE_NUMBERS[name]]
    blocks = encode(name, GAUSSIAN[:8, :1024])[:, kind.header :].reshape(-1, kind.bytes)
    shifted = SHIFTED_ROWS[name][0](blocks)[2] if name in SHIFTED_ROWS else np.unpackbits(blocks[:, 2:4])
    assert 0.2 < shifted.mean() < 0.8


@pytest.mark.parametrize("name", SHIFTED_ROWS)
def test_row_scales_fit_all_groups(name: str) -> None:
    """Groups may have very different sizes, and a row any number of superblocks and any place in a matrix."""
    x = np.ascontiguousarray(GAUSSIAN[:3, :1792])
    x[:, :256] *= 0.1
    together = encode(name, x)
    alone = np.concatenate([encode(name, row[None]) for row in x])
    np.testing.assert_array_equal(together, alone)
    assert errors.relative_error(x, decoded(name, together), np.ones(1792)) < {"2": 0.36, "3": 0.19}.get(name[2], 0.09)
