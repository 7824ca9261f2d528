"""Encoders of the formats that have a table of values: against the gguf package, ggml's errors, and all other codes."""

from collections.abc import Sequence

import encoding_errors as errors
import gguf
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, cruel_rows, decoded, encode
from kernels import NUMBERS, Floats

# Formats whose scale is given by the largest magnitude: their blocks are to be the gguf package's, byte for byte.
GIVEN = ["MXFP4", "TQ1_0", "TQ2_0"]

# Formats whose scales are looked for, and where a block has bytes of codes only, which are the best under its scales.
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


# The columns that have a scale of their own.
GROUPS = dict.fromkeys(CODES, 32) | dict.fromkeys(("IQ2_S", "IQ2_XS", "IQ1_M"), 16)


@pytest.mark.parametrize("name", GIVEN)
def test_blocks_are_those_of_the_gguf_package(name: str) -> None:
    rng = np.random.default_rng(1)
    powers = np.ldexp(np.float32(1), rng.integers(-60, 15, (9, 768), np.int32))
    ties = np.rint(4 * GAUSSIAN[:9, :768]) / 4
    heavy = rng.standard_t(2, (9, 768)).astype(np.float32)
    below = np.nextafter(powers, np.float32(0))
    x = np.concatenate([GAUSSIAN[:9, :768], heavy, ties, powers, below, 1e-7 * ties, np.zeros_like(ties)])
    expected = gguf.quantize(x, gguf.GGMLQuantizationType(NUMBERS[name]))
    np.testing.assert_array_equal(encode(name, x), expected)


@pytest.mark.parametrize("name", [*GIVEN, *CODES])
def test_cruel_rows_become_finite_blocks(name: str) -> None:
    for x in cruel_rows():
        for importance in (None, np.zeros_like(x[0]), np.full_like(x[0], 1e38), np.full_like(x[0], 1e-42)):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()


@pytest.fixture(params=["gaussian", "heavy_tailed", "smollm2", "gemma3"])
def sample(request: pytest.FixtureRequest) -> tuple[str, Floats]:
    """Its name, and weights."""
    if request.param in ("smollm2", "gemma3"):
        return request.param, errors.trained(request.getfixturevalue(request.param))
    return request.param, getattr(errors, request.param)()


@pytest.mark.parametrize("name", CODES)
def test_the_error_is_no_larger_than_ggmls(name: str, sample: tuple[str, Floats]) -> None:
    which, x = sample
    plain, weighted = errors.of_ggml()[which][name]
    weight = errors.importance(x.shape[1])
    assert errors.relative_error(x, decoded(name, encode(name, x))) <= plain
    assert errors.relative_error(x, decoded(name, encode(name, x, weight)), weight) <= weighted


@pytest.mark.parametrize("name", CODES)
def test_no_other_codes_are_nearer(name: str) -> None:
    """All values of some bytes that hold codes, under the scales that are there."""
    rng = np.random.default_rng(5)
    n = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]
    x, weight = GAUSSIAN[:3, :n], errors.importance(n)
    counts = naive_encode.counts(x, weight, GROUPS[name], n, part=1.0)
    for row, count, chosen in zip(x, counts, encode(name, x, weight), strict=True):
        least = errors.relative_error(row, decoded(name, chosen[None])[0], count)
        for place in rng.choice(CODES[name], 10):
            others = np.tile(chosen, (256, 1))
            others[:, place] = np.arange(256)
            found = [errors.relative_error(row, y, count) for y in decoded(name, others)]
            assert min(found) >= least * (1 - 1e-4)


@pytest.mark.parametrize("name", CODES)
def test_the_end_of_a_row_is_a_block_like_others(name: str) -> None:
    """Groups are encoded side by side; what stands beside one, or does not, changes nothing."""
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]
    x, weight = GAUSSIAN[:1, : 7 * block], errors.importance(7 * block)
    weight[0] = weight.max() + 1  # importance counts by its share of the largest one
    whole = encode(name, x, weight)
    for count in (1, 4, 6):
        part = encode(name, x[:, : count * block], weight[: count * block])
        np.testing.assert_array_equal(part[0], whole[0, : part.shape[1]])
