"""Encoders of the formats that have a table of values: against the gguf package, and against plain searches."""

import gguf
import numpy as np
import pytest
from encoding import GAUSSIAN, cruel_rows, decoded, encode
from kernels import NUMBERS

# Formats whose scale is given by the largest magnitude: their blocks are to be the gguf package's, byte for byte.
GIVEN = ["MXFP4", "TQ1_0", "TQ2_0"]


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


@pytest.mark.parametrize("name", GIVEN)
def test_cruel_rows_become_finite_blocks(name: str) -> None:
    for x in cruel_rows():
        assert np.isfinite(decoded(name, encode(name, x))).all()
