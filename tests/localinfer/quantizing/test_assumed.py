"""What is assumed of a tied table of tokens, and of nothing else."""

import numpy as np
import pytest
from sources import from_arrays

from localinfer.quantizing.assumed import ROWS, TABLE, with_assumed

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [7, 2 * ROWS])
def test_a_tied_table_is_like_what_it_is_multiplied_with(rows: int) -> None:
    columns = np.array([1, 2, 4, 8] * 16, np.float32)
    table = columns * RNG.standard_normal((rows, 64), np.float32)
    source = from_arrays(**{TABLE: table, "blk.0.attn_q.weight": table})
    assert with_assumed(source, {}, "fast") == {}
    found = with_assumed(source, {}, "normal")
    assert [*found] == [TABLE]
    looked_at = table if rows < ROWS else table[::2]
    np.testing.assert_allclose(found[TABLE], [np.square(looked_at).mean(axis=0)], rtol=1e-5)


def test_what_is_known_stays() -> None:
    table = RNG.standard_normal((8, 64), np.float32)
    known = {TABLE: np.ones((1, 64), np.float32)}
    assert with_assumed(from_arrays(**{TABLE: table}), known, "normal")[TABLE] is known[TABLE]


def test_a_table_that_is_only_looked_up_has_none() -> None:
    table = RNG.standard_normal((8, 64), np.float32)
    assert with_assumed(from_arrays(**{TABLE: table, "output.weight": table}), {}, "normal") == {}
