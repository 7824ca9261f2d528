"""How the blocks of cells are turned on average."""

import numpy as np
import pytest

from localinfer.plan.buffers import Region
from localinfer.plan.rope import Angles, BlockTable, Rope

ROPE = Rope("halves", np.concatenate([10_000.0 ** (-np.arange(16) / 16), [0.0, 1e-20]]), amplitude=1.25)


@pytest.mark.parametrize("first", [0, 64, 64 * 500])
def test_a_block_is_turned_as_its_positions_are_on_average(first: int) -> None:
    each = Angles(ROPE).at(np.arange(first, first + 64)).astype(np.float64)
    found = BlockTable(ROPE, 0, Region(0)).at(np.array([first]))
    np.testing.assert_allclose(found[0], each.mean(axis=0), atol=1e-6)
