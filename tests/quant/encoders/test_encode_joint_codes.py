"""Encoders of IQ4_KSS and IQ2_KL, which store only some combinations of codes: all combinations are tried."""

import encoding_errors as errors
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode
from kernels import Bytes, Floats
from numpy.typing import NDArray

from localinfer.naive.tensor_types import SHIFTED_ROWS, VALUE_PAIRS


def assert_none_is_better(name: str, row: Floats, count: NDArray[np.float64], chosen: Bytes, others: Bytes) -> None:
    """Assert that no other block of a row of one superblock has a smaller error, weighted by `count`."""
    weighed = count * (decoded(name, others).astype(np.float64) - row) ** 2
    least = np.sqrt(weighed.sum(1).min() / (count * row.astype(np.float64) ** 2).sum())
    assert least >= 0.999999 * errors.relative_error(row, decoded(name, chosen[None])[0], count)


@pytest.mark.parametrize("name", ["IQ4_KSS", "IQ2_KL"])
def test_combinations_are_nearest(name: str) -> None:
    """Replace the codes of some columns by all other combinations, with the scales and tables that were chosen."""
    rng, x, weight = np.random.default_rng(5), GAUSSIAN[:2, :256], errors.importance(256)
    counts = naive_encode.error_weights(x, weight, 32, 256, strength=1.0)
    for row, count, chosen in zip(x, counts, encode(name, x, weight), strict=True):
        for number in rng.choice(64, 6):
            if name == "IQ4_KSS":  # word `number`, of four columns
                others = np.tile(chosen, (1 << 15, 1))
                words = others[:, 4 + 2 * number : 6 + 2 * number].view("<u2")
                words[:, 0] = (words[:, 0] & 1) | np.arange(1 << 15, dtype="<u2") << 1
            else:  # the low nibble of byte `number`, and the fifth bit of this index
                others = np.tile(chosen, (32, 1))
                index, group = np.arange(32, dtype=np.uint8), number // 16 * 2
                others[:, 8 + number] = (others[:, 8 + number] & 0xF0) | (index & 15)
                fifths = others[:, 72 + number % 16]
                fifths[:] = (fifths & np.uint8(255 - (1 << group))) | (index >> 4) << group
            assert_none_is_better(name, row, count, chosen, others)


def test_words_of_iq4_kss_are_exact() -> None:
    """Groups of numbers of either table, times a scale of their own, are represented exactly if of every four indices
    an even number of bits is set.
    """
    _, numbers, shift = SHIFTED_ROWS["IQ4_KSS"]
    rng = np.random.default_rng(3)
    index = rng.integers(0, 16, (4, 8, 2, 8, 2))  # halves of groups, words, columns of a word
    index[:, :, :, 0] = [0, 15]
    ones = np.bitwise_count(index).sum((2, 4), keepdims=True).astype(np.int64) % 2
    index[:, :, :1, :, :1] ^= ones
    values = np.array(numbers)[index.reshape(4, 8, 32)] + shift * rng.integers(0, 2, (4, 8, 1))
    x = (values * rng.choice((-127, 95), (4, 8, 1)) * 0.25).astype(np.float32).reshape(4, 256)
    np.testing.assert_allclose(decoded("IQ4_KSS", encode("IQ4_KSS", x)), x, rtol=1e-6)


def test_pairs_of_iq2_kl_are_exact() -> None:
    """Groups of pairs, each times a scale of their own, are represented exactly."""
    rng = np.random.default_rng(4)
    index = rng.integers(0, 32, (4, 8, 16))
    index[:, :, :4] = [0, 1, 30, 31]
    x = VALUE_PAIRS[index].reshape(4, 8, 32) * rng.choice((-32, 24), (4, 8, 1)) * 0.25
    rows = x.astype(np.float32).reshape(4, 256)
    np.testing.assert_array_equal(decoded("IQ2_KL", encode("IQ2_KL", rows)), rows)


def test_extreme_rows_give_finite_blocks() -> None:
    for x in adversarial_rows():
        for importance in (None, np.zeros_like(x[0]), np.full_like(x[0], 1e38), np.full_like(x[0], 1e-42)):
            assert np.isfinite(decoded("IQ2_KL", encode("IQ2_KL", x, importance))).all()


def test_row_scales_of_iq2_kl_fit_all_groups() -> None:
    """Rows are independent, and more effort reduces the error."""
    x = np.ascontiguousarray(GAUSSIAN[:3, :1792])
    together = encode("IQ2_KL", x)
    np.testing.assert_array_equal(together, np.concatenate([encode("IQ2_KL", row[None]) for row in x]))
    fast = encode("IQ2_KL", x, None, "fast")
    normal_error, fast_error = (errors.relative_error(x, decoded("IQ2_KL", rows)) for rows in (together, fast))
    assert normal_error < min(fast_error, 0.3)
