"""Tables of convolutions name the places that a convolution reads."""

import numpy as np
import pytest

from localinfer.multimodal.encoder_graph.feature_maps import (
    OUTSIDE,
    Padding,
    centered_padding,
    padding_at_the_end,
    squares,
    strided,
)


@pytest.mark.parametrize("size", [(4, 4), (5, 8), (1, 3), (7, 2)])
@pytest.mark.parametrize(("width", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (1, 2)])
@pytest.mark.parametrize("padding", [padding_at_the_end, centered_padding])
def test_places_that_a_convolution_reads(size: tuple[int, int], width: int, stride: int, padding: Padding) -> None:
    height, columns = strided(size, stride)
    found = squares(size, width, stride, padding).reshape(height, columns, width, width)
    top, left = (padding(length, width, stride)[0] for length in size)
    for (row, column, y, x), number in np.ndenumerate(found):
        at = row * stride + y - top, column * stride + x - left
        is_inside = 0 <= at[0] < size[0] and 0 <= at[1] < size[1]
        assert number == (at[0] * size[1] + at[1] if is_inside else OUTSIDE)


@pytest.mark.parametrize(("length", "width", "stride", "expected"), [
    (8, 3, 2, (0, 1)), (7, 3, 2, (1, 1)), (8, 5, 2, (1, 2)), (8, 3, 1, (1, 1)), (8, 1, 2, (0, 0)),
])  # fmt: skip
def test_more_zeros_at_the_end(length: int, width: int, stride: int, expected: tuple[int, int]) -> None:
    assert padding_at_the_end(length, width, stride) == expected


@pytest.mark.parametrize(("length", "width", "stride"), [(8, 3, 2), (7, 3, 2), (8, 5, 1), (8, 1, 2)])
def test_every_other_place_is_in_the_middle(length: int, width: int, stride: int) -> None:
    found = squares((1, length), width, stride, centered_padding)[:, width**2 // 2]
    assert np.array_equal(found, np.arange(0, length, stride))
