"""Encoders of formats with a table of values, against the gguf package, ggml's errors, and an exhaustive search."""

from collections.abc import Sequence

import encoding_errors as errors
import gguf
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode
from kernels import NUMBERS, Floats

# Formats whose scale follows from the largest magnitude: their blocks must be bit-identical to the gguf package's.
MATCHING_GGUF = ["MXFP4", "TQ1_0", "TQ2_0"]

# Formats with searched scales, and the bytes of a block that only hold codes. These are optimal for the scales.
CODES: dict[str, Sequence[int]] = {
    "IQ4_NL": range(2, 18),
    "IQ4_XS": range(8, 136),
    "IQ3_S": [*range(2, 66), *range(74, 106)],  # rows of the codebook, signs
    "IQ3_XXS": range(2, 66),
    "IQ2_S": range(2, 66),
    "IQ2_XS": range(2, 66, 2),
    "IQ2_XXS": [2 + 8 * group + row for group in range(8) for row in range(4)],
    "IQ1_S": range(2, 34),
    "IQ1_M": range(32),
}


# The number of columns that share a scale.
GROUPS = dict.fromkeys(CODES, 32) | dict.fromkeys(("IQ2_S", "IQ2_XS", "IQ1_M"), 16)


@pytest.mark.parametrize("name", MATCHING_GGUF)
def test_blocks_match_gguf_package(name: str) -> None:
    rng = np.random.default_rng(1)
    powers = np.ldexp(np.float32(1), rng.integers(-60, 15, (9, 768), np.int32))
    ties = np.rint(4 * GAUSSIAN[:9, :768]) / 4
    heavy = rng.standard_t(2, (9, 768)).astype(np.float32)
    below = np.nextafter(powers, np.float32(0))
    x = np.concatenate([GAUSSIAN[:9, :768], heavy, ties, powers, below, 1e-7 * ties, np.zeros_like(ties)])
    expected = gguf.quantize(x, gguf.GGMLQuantizationType(NUMBERS[name]))
    np.testing.assert_array_equal(encode(name, x), expected)


@pytest.mark.parametrize("name", [*MATCHING_GGUF, *CODES])
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    for x in adversarial_rows():
        for importance in (None, np.zeros_like(x[0]), np.full_like(x[0], 1e38), np.full_like(x[0], 1e-42)):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()


@pytest.fixture(params=["gaussian", "heavy_tailed", "smollm2", "gemma3"])
def sample(request: pytest.FixtureRequest) -> tuple[str, Floats]:
    """The name of a sample, and its weights."""
    if request.param in ("smollm2", "gemma3"):
        return request.param, errors.trained(request.getfixturevalue(request.param))
    return request.param, getattr(errors, request.param)()


@pytest.mark.parametrize("name", CODES)
def test_error_is_at_most_ggmls(name: str, sample: tuple[str, Floats]) -> None:
    which, x = sample
    plain, weighted = errors.of_ggml()[which][name]
    weight = errors.importance(x.shape[1])
    assert errors.relative_error(x, decoded(name, encode(name, x))) <= plain
    assert errors.relative_error(x, decoded(name, encode(name, x, weight)), weight) <= weighted


@pytest.mark.parametrize("name", CODES)
def test_codes_are_nearest(name: str) -> None:
    """Try all values of some bytes that hold codes, with the given scales."""
    rng = np.random.default_rng(5)
    n = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]
    x, weight = GAUSSIAN[:3, :n], errors.importance(n)
    counts = naive_encode.error_weights(x, weight, GROUPS[name], n, strength=1.0)
    for row, count, chosen in zip(x, counts, encode(name, x, weight), strict=True):
        minimum = errors.relative_error(row, decoded(name, chosen[None])[0], count)
        for position in rng.choice(CODES[name], 10):
            others = np.tile(chosen, (256, 1))
            others[:, position] = np.arange(256)
            actual = [errors.relative_error(row, y, count) for y in decoded(name, others)]
            assert min(actual) >= minimum * (1 - 1e-4)


@pytest.mark.parametrize("name", CODES)
def test_partial_tile_at_row_end(name: str) -> None:
    """Groups are encoded side by side; the neighbours of a group, or their absence, change nothing."""
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]
    x, weight = GAUSSIAN[:1, : 7 * block], errors.importance(7 * block)
    weight[0] = weight.max() + 1  # importance is relative to the largest one
    whole = encode(name, x, weight)
    for count in (1, 4, 6):
        chunk = encode(name, x[:, : count * block], weight[: count * block])
        np.testing.assert_array_equal(chunk[0], whole[0, : chunk.shape[1]])
