"""The second matrix of LoRA adapters with the scales of tokens, compared with float64."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.graph.properties.adapters import LowRankChange, LowRankPair

RANKS, FACTORS, N_OUT = (5, 16, 20), (0.5, -2.0, 3.0), 83
RNG = np.random.default_rng(0)
PAIRS = [
    LowRankPair(number, np.zeros((rank, 8), np.float32), RNG.standard_normal((N_OUT, rank)), factor)
    for number, (rank, factor) in enumerate(zip(RANKS, FACTORS, strict=True))
]
COLUMNS = np.concatenate([16 * i + np.arange(rank) for i, rank in zip((0, 1, 2), RANKS, strict=True)])  # not padding
Floats = NDArray[np.float32]


def change(dtype: type[np.float32] | type[np.float16]) -> LowRankChange:
    return LowRankChange("w", [pair._replace(b=pair.b.astype(dtype)) for pair in PAIRS])


def add(
    x: Floats, y: Floats, scales: Floats, stacked: LowRankChange, first: int, order: NDArray[np.int32] | int = 0,
    threads: int = 1,
) -> Floats:  # fmt: skip
    """Return y plus the products of the kernel, with B's rows from `first` on. x has other columns before and after."""
    b, y, rank = stacked.panels(first, y.shape[1]), y.copy(), x.shape[1]
    x = np.pad(x, ((0, 0), (16, 32)), constant_values=np.nan)
    arguments = {
        "tokens": np.array([len(x)]), "x": x, "x_n": x.shape[1], "x_first": 16, "order": order,
        "scales": scales, "count": len(PAIRS),
        "owners": stacked.owners.data, "factors": stacked.factors.data, "rank": rank, "b": b.data,
        "n": y.shape[1], "y": y,
    }  # fmt: skip
    format_module = {"F32": "f32", "F16": "f16"}[b.type_name]
    kernels.run("localinfer.kernels.low_rank:add_low_rank", arguments, threads, format_module=format_module)
    return y


def naive(x: Floats, y: Floats, scales: Floats, first: int, dtype: type) -> NDArray[np.float64]:
    """Return the same in float64, adapter after adapter."""
    result, at = y.astype(np.float64), 0
    for number, (_, _, b, factor) in enumerate(PAIRS):
        rank = b.shape[1]
        rows = b.astype(dtype).astype(np.float64)[first : first + y.shape[1]]
        result += factor * scales[:, number : number + 1] * (x[:, COLUMNS[at : at + rank]].astype(np.float64) @ rows.T)
        at += rank
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("first", "n"), [(0, N_OUT), (0, 64), (7, 48), (70, 13)])
def test_products_are_added(first: int, n: int, dtype: type[np.float32]) -> None:
    """Padding columns of x are not zero: those of B are."""
    x, y = RNG.standard_normal((7, 64), np.float32), RNG.standard_normal((7, n), np.float32)
    scales = RNG.standard_normal((7, len(PAIRS)), np.float32)
    stacked = change(dtype)
    actual = add(x, y, scales, stacked, first)
    np.testing.assert_allclose(actual, naive(x, y, scales, first, dtype), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(add(x, y, scales, stacked, first, threads=3), actual)
    alone = [add(x[i : i + 1], y[i : i + 1], scales[i : i + 1], stacked, first)[0] for i in range(len(x))]
    np.testing.assert_array_equal(alone, actual)


def test_rows_of_some_tokens() -> None:
    x, y = RNG.standard_normal((3, 64), np.float32), RNG.standard_normal((3, N_OUT), np.float32)
    scales, order = RNG.standard_normal((5, len(PAIRS)), np.float32), np.array([4, 0, 2], np.int32)
    actual = add(x, y, scales, change(np.float32), 0, order)
    np.testing.assert_allclose(actual, naive(x, y, scales[order], 0, np.float32), rtol=1e-5, atol=1e-4)
