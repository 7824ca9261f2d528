"""Encoders of IQ1_KT to IQ4_KT, whose values a generator makes of indices: all points are tried."""

import encoding_errors as errors
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode
from kernels import Floats
from numpy.typing import NDArray

from localinfer.naive.tensor_types import TRELLIS, generated
from quant.encoders.trellis_points import CLUSTERS, POINT_SETS, TILE, search_tables
from quant.ggml import TYPE_NUMBERS, TYPES

LARGEST_ERROR = {"IQ1_KT": 0.40, "IQ2_KT": 0.31, "IQ3_KT": 0.165, "IQ4_KT": 0.093}  # of normal weights, relative


def all_points(name: str) -> NDArray[np.int64]:
    """Return the values of all indices, (variants, indices, columns)."""
    points = POINT_SETS[name]
    values = [generated(np.arange(1 << points.bits)[:, None] + offset, points.columns) for offset in points.offsets]
    return np.abs(values) if points.without_signs else np.array(values)


@pytest.mark.parametrize("name", POINT_SETS)
def test_tables_have_every_point(name: str) -> None:
    points, tables = POINT_SETS[name], search_tables(name)
    variants = len(points.offsets)
    starts = tables[: 4 * (CLUSTERS * variants + 1)].view("<u4")
    ids = tables[points.points_at :][: 2 * TILE * starts[-1]].view("<u2").reshape(-1, TILE)
    values = tables[points.points_at + ids.nbytes :].view(np.int8).reshape(-1, points.columns, TILE)
    for variant, expected in enumerate(all_points(name)):
        tiles = slice(starts[CLUSTERS * variant], starts[CLUSTERS * (variant + 1)])
        assert set(ids[tiles].reshape(-1)) == set(range(1 << points.bits))
        np.testing.assert_array_equal(values[tiles].transpose(0, 2, 1), expected[ids[tiles]])


@pytest.mark.parametrize("name", POINT_SETS)
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    for x in adversarial_rows():
        for importance in (None, np.zeros_like(x[0]), np.full_like(x[0], 1e38), np.full_like(x[0], 1e-42)):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()


@pytest.mark.parametrize("name", POINT_SETS)
def test_error_of_normal_weights(name: str) -> None:
    """Rows are independent, and more effort reduces the error."""
    x = np.ascontiguousarray(GAUSSIAN[:6, :1792])
    together = encode(name, x)
    np.testing.assert_array_equal(together, np.concatenate([encode(name, row[None]) for row in x]))
    even = np.ones(x.shape[1])
    normal, fast = (errors.relative_error(x, decoded(name, encode(name, x, None, e)), even) for e in ("normal", "fast"))
    assert normal < min(0.97 * fast, LARGEST_ERROR[name])


def nearest_error(x: Floats, weights: NDArray[np.float64], points: NDArray[np.float64]) -> float:
    """Return the weighted squared error of a group with the best of its points, (points, columns)."""
    return float((weights * (x - points) ** 2).sum(1).min())


@pytest.mark.parametrize("name", POINT_SETS)
def test_most_groups_have_the_nearest_point(name: str) -> None:
    """With the scales that were chosen, the best of all points is hardly better than the ones that were found."""
    x, weight, points = GAUSSIAN[:1, :256], errors.importance(256), POINT_SETS[name]
    weights = naive_encode.error_weights(x, weight, 32, 256, strength=1.0).reshape(-1)
    rows, header = encode(name, x, weight), TYPES[TYPE_NUMBERS[name]].header
    scales = rows[0, :header].view("<f4") * TRELLIS[name](rows[:, header:])[0][0]
    found = (weights * (x[0].astype(np.float64) - decoded(name, rows)[0]) ** 2).reshape(8, 32).sum(1)
    target = (np.abs(x[0]) if points.without_signs else x[0]).reshape(8, -1, points.columns)
    best = [
        min(
            sum(nearest_error(*group, scale * values) for group in zip(*groups, strict=True))
            for values in all_points(name).astype(np.float64)
        )
        for scale, *groups in zip(scales, target, weights.reshape(target.shape), strict=True)
    ]
    assert (found >= np.multiply(best, 1 - 1e-5)).all()
    assert found.sum() < 1.1 * sum(best)


@pytest.mark.parametrize("name", POINT_SETS)
def test_subnormal_weights_stay_within_the_tables(name: str) -> None:
    """The reciprocals of their scales are infinite. A cluster that does not exist would crash this process."""
    for size in (1e-45, 1e-42, 1e-39, 1e-36):
        x = (GAUSSIAN[:4, :512] * np.float32(size)).astype(np.float32)
        x[:, ::7] = 0
        for importance in (None, errors.importance(512)):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()
