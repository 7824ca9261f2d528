"""Media rows: copied and added where a token has one, compared with float64."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

TOKENS, N, SLICES = 7, 48, 3
NUMBERS = np.array([-1, 2, -1, 0, 1, -1, 2], np.int32)
RNG = np.random.default_rng(0)
Floats = NDArray[np.float32]


def run(kernel: str, rows: Floats, y: Floats, number: int, threads: int) -> None:
    arguments = {"tokens": np.array([len(y)]), "x": rows, "x_n": SLICES * N, "x_first": number * N, "n": N, "y": y}
    kernels.run(f"localinfer.kernels.media:{kernel}", arguments | {"numbers": NUMBERS}, threads)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", range(SLICES))
def test_rows_are_replaced_and_added(threads: int, number: int) -> None:
    rows = RNG.standard_normal((3, SLICES * N), np.float32)
    before = RNG.standard_normal((TOKENS, N), np.float32)
    replaced, added, is_row = before.copy(), before.copy(), NUMBERS >= 0
    slices = rows[NUMBERS[is_row], number * N : (number + 1) * N]
    run("replace_rows", rows, replaced, number, threads)
    np.testing.assert_array_equal(replaced[is_row], slices)
    np.testing.assert_array_equal(replaced[~is_row], before[~is_row])
    run("add_rows", rows, added, number, threads)
    np.testing.assert_allclose(added[is_row], before[is_row].astype(np.float64) + slices, rtol=2**-24, atol=0)
    np.testing.assert_array_equal(added[~is_row], before[~is_row])
