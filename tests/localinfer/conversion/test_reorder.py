"""Values that a conversion changes, in each type that checkpoints have."""

import numpy as np
import pytest

from localinfer.conversion.tensor_formats.reorder import negate_second_halves


@pytest.mark.parametrize("type", [np.float32, np.float16])
def test_the_second_half_of_each_head_is_negated(type: type[np.floating]) -> None:
    values = np.arange(1, 25).reshape(8, 3).astype(type)  # two heads of four rows
    signs = np.array([1, 1, -1, -1] * 2)[:, None]
    np.testing.assert_array_equal(negate_second_halves(values, 2), values * signs)


def test_bf16_values_are_negated_as_their_bits() -> None:
    values = (np.arange(1, 9).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(4, 2)
    floats = (negate_second_halves(values, 1).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(floats, [[1, 2], [3, 4], [-5, -6], [-7, -8]])
