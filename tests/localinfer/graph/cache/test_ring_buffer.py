"""Which positions tokens attend to."""

import numpy as np
import pytest

from localinfer.graph.cache.ring_buffer import VisiblePositions


@pytest.mark.parametrize(
    ("visible", "oldest"),
    [
        (VisiblePositions(4), [-3, 0, 5]),  # the last 4 positions, the token's own included
        (VisiblePositions(4, causal=False), [-2, 1, 6]),  # 2 positions on each side
        (VisiblePositions(8, chunk=8), [0, 0, 8]),  # chunks start at 0, 8, ...
        (VisiblePositions(8, sinks=4), [-7, -4, 1]),  # sinks do not count
    ],
)
def test_oldest_visible_position(visible: VisiblePositions, oldest: list[int]) -> None:
    positions = np.array([0, 3, 8])
    np.testing.assert_array_equal(visible.oldest(positions), oldest)
    assert [visible.oldest(int(position)) for position in positions] == oldest
