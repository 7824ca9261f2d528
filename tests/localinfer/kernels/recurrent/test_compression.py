"""Compression of runs of positions, compared with float64: any division into batches, any number of threads."""

from itertools import pairwise

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]
N = 48


def compress(first: int, values: Floats, scores: Floats, ape: Floats, tails: list[Floats], threads: int) -> Floats:
    """Run the kernel for tokens from position `first` on, which updates the tails."""
    run, columns = ape.shape
    y = np.full((len(values), N), np.nan, np.float32)
    arguments = {
        "tokens": np.array([len(values)]), "values": values, "scores": scores, "ape": ape,
        "positions": np.arange(first, first + len(values), dtype=np.int32), "run": run, "parts": columns // N, "n": N,
        "segments": np.array([1, len(values), 0, 0]), "values_tail": tails[0], "scores_tail": tails[1], "y": y,
    }  # fmt: skip
    kernels.run("localinfer.kernels.recurrent.compression:compress", arguments, threads)
    return y


def expected_means(values: Floats, scores: Floats, ape: Floats) -> NDArray[np.float64]:
    """Return the means of the runs, which overlap if there are twice as many columns, in the rows of their ends."""
    run, overlaps = len(ape), ape.shape[1] > N
    y, scores = np.zeros((len(values), N)), scores.astype(np.float64)
    for end in range(run - 1, len(values), run):
        rows = [(end - run + 1 + i, i, slice(-N, None)) for i in range(run)]
        if overlaps and end >= 2 * run - 1:
            rows = [(end - 2 * run + 1 + i, i, slice(0, N)) for i in range(run)] + rows
        raised = np.exp([scores[row, columns] + ape[i, columns] for row, i, columns in rows])
        y[end] = (raised / raised.sum(axis=0) * [values[row, columns] for row, _, columns in rows]).sum(axis=0)
    return y


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("run", "parts"), [(4, 2), (5, 1), (2, 2)])
def test_runs_become_means_with_weights_of_each_column(run: int, parts: int, threads: int) -> None:
    rng, tokens = np.random.default_rng(run), 23
    values, scores = rng.standard_normal((2, tokens, parts * N), np.float32)
    ape = rng.standard_normal((run, parts * N), np.float32)
    tails = [np.zeros((parts * run - 1, parts * N), np.float32) for _ in range(2)]
    whole = compress(0, values, 3 * scores, ape, tails, threads)
    np.testing.assert_allclose(whole, expected_means(values, 3 * scores, ape), rtol=0, atol=2e-6)
    for tail, rows in zip(tails, (values, 3 * scores), strict=True):
        np.testing.assert_array_equal(tail, rows[tokens - len(tail) :])

    tails = [np.full_like(tail, np.nan) for tail in tails]  # what is before position 0 has no effect
    borders = (0, 1, 3, 4, 11, 12, 23)
    parts_of_text = [
        compress(a, values[a:b], 3 * scores[a:b], ape, tails, threads) for a, b in pairwise(borders)
    ]
    np.testing.assert_array_equal(np.concatenate(parts_of_text), whole)
