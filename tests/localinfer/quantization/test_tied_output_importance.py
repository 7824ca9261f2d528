"""The estimated importance of tied token embeddings, and of no other tensor."""

import numpy as np
import pytest
from sources import from_arrays

from localinfer.quantization.tied_output_importance import MAX_ROWS, TABLE, with_tied_output_importance

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [7, 2 * MAX_ROWS])
def test_tied_table_estimates_its_inputs(rows: int) -> None:
    columns = np.array([1, 2, 4, 8] * 16, np.float32)
    table = columns * RNG.standard_normal((rows, 64), np.float32)
    source = from_arrays(**{TABLE: table, "blk.0.attn_q.weight": table})
    assert with_tied_output_importance(source, {}, "fast") == {}
    actual = with_tied_output_importance(source, {}, "normal")
    assert [*actual] == [TABLE]
    looked_at = table if rows < MAX_ROWS else table[::2]
    np.testing.assert_allclose(actual[TABLE], [np.square(looked_at).mean(axis=0)], rtol=1e-5)


def test_known_importance_is_kept() -> None:
    table = RNG.standard_normal((8, 64), np.float32)
    known = {TABLE: np.ones((1, 64), np.float32)}
    assert with_tied_output_importance(from_arrays(**{TABLE: table}), known, "normal")[TABLE] is known[TABLE]


def test_untied_table_gets_none() -> None:
    table = RNG.standard_normal((8, 64), np.float32)
    assert with_tied_output_importance(from_arrays(**{TABLE: table, "output.weight": table}), {}, "normal") == {}
