"""The encoder of IQ4_KSS, which stores only some combinations of codes: all combinations are tried."""

import encoding_errors as errors
import naive_encode
import numpy as np
from encoding import GAUSSIAN, decoded, encode

from localinfer.naive.tensor_types import SHIFTED_ROWS


def test_words_are_nearest() -> None:
    """Replace some words, each of four codes, by all others, with the scales and tables that were chosen."""
    rng, words = np.random.default_rng(5), np.arange(1 << 15, dtype="<u2") << 1
    x, weight = GAUSSIAN[:2, :256], errors.importance(256)
    counts = naive_encode.error_weights(x, weight, 32, 256, strength=1.0)
    for row, count, chosen in zip(x, counts, encode("IQ4_KSS", x, weight), strict=True):
        minimum = errors.relative_error(row, decoded("IQ4_KSS", chosen[None])[0], count)
        for position in 4 + 2 * rng.choice(64, 6):
            others = np.tile(chosen, (len(words), 1))
            stored = others[:, position : position + 2].view("<u2")
            stored[:] = (stored & 1) | words[:, None]
            away = decoded("IQ4_KSS", others).astype(np.float64) - row
            least = np.sqrt((count * away**2).sum(1).min() / (count * row.astype(np.float64) ** 2).sum())
            assert least >= 0.999999 * minimum


def test_values_of_the_tables_are_exact() -> None:
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
