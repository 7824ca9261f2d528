"""The mean rotation of the cache pages."""

import numpy as np
import pytest

from localinfer.graph.ops.buffers import Region
from localinfer.graph.properties.rope import Rope
from localinfer.graph.recording.rope_tables import Angles, BlockTable

ROPE = Rope("halves", np.concatenate([10_000.0 ** (-np.arange(16) / 16), [0.0, 1e-20]]), amplitude=1.25)


@pytest.mark.parametrize("first", [0, 64, 64 * 500])
def test_page_rotation_is_the_mean_of_its_positions(first: int) -> None:
    each = Angles(ROPE).rows(np.arange(first, first + 64)).astype(np.float64)
    actual = BlockTable(ROPE, 0, Region(0)).at(np.array([first]))
    np.testing.assert_allclose(actual[0], each.mean(axis=0), atol=1e-6)
