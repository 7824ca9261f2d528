"""The points of the generators of IQ1_KT to IQ4_KT (`quant.packing.generator`), sorted into clusters for the search.

A point is the values of a group of 8 or 4 columns. Thresholds divide the range of each column into bins, and the points
whose columns have the same bins are a cluster. This module does not import numba: a kernel that is already compiled
needs only its tables, one array of bytes:

  uint32[clusters + 1]       the first tile of each cluster, and the number of all tiles; then padding up to `points_at`
  uint16[tiles][16]          the indices of the points of each tile of sixteen
  int8[tiles][columns][16]   their values, column by column

The last tile of a cluster is filled up with its first point. A format with variants of its points, one for each offset
of the index, has the clusters of the second variant after those of the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from quant.packing.generator import MASK, MIDDLE, MULTIPLIER, OFFSET

CLUSTERS = 256  # of a variant
TILE = 16


@dataclass(frozen=True)
class PointSet:
    """The points of a format: the columns of a group, the bits of an index, whether the values are without signs, the
    thresholds of the bins, and the offsets of the variants. `changes` has, for each effort, the number of columns whose
    neighbouring clusters are searched as well."""

    columns: int
    bits: int
    changes: Mapping[str, int]
    without_signs: bool = False
    thresholds: tuple[float, ...] = (0.0,)
    offsets: tuple[int, ...] = (OFFSET,)

    @property
    def points_at(self) -> int:
        """The offset of the indices in the tables, in bytes."""
        return 4 * CLUSTERS * len(self.offsets) + 64


POINT_SETS = {
    "IQ1_KT": PointSet(8, 13, {"fast": 4, "normal": 5}),
    "IQ2_KT": PointSet(8, 16, {"fast": 2, "normal": 3}),
    "IQ3_KT": PointSet(8, 16, {"fast": 2, "normal": 3}, without_signs=True, thresholds=(25.0,)),
    "IQ4_KT": PointSet(
        4, 15, {"fast": 1, "normal": 2}, thresholds=(-25.0, 0.0, 25.0), offsets=(OFFSET, OFFSET + 32768)
    ),
}


def generated_values(points: PointSet, offset: int) -> NDArray[np.int8]:
    """Return the values of all indices, (indices, columns)."""
    states = np.arange(1 << points.bits, dtype=np.uint64) + np.uint64(offset)
    columns = []
    for _ in range(points.columns):
        states = states * np.uint64(MULTIPLIER) & np.uint64(0xFFFFFFFF)
        six_bits = (states & np.uint64(MASK)).astype("<u4").view(np.uint8).reshape(-1, 4)
        columns.append(six_bits.sum(axis=1, dtype=np.int16) - MIDDLE)
    values = np.stack(columns, axis=1).astype(np.int8)
    return np.abs(values) if points.without_signs else values


@cache
def search_tables(type_name: str) -> NDArray[np.uint8]:
    """Return the tables of a type. The array must not be changed."""
    points, tiles, starts = POINT_SETS[type_name], list[NDArray[np.int64]](), [0]
    every = [generated_values(points, offset) for offset in points.offsets]
    bins = len(points.thresholds) + 1
    for values in every:
        by_column = np.searchsorted(points.thresholds, values, side="left")  # above a threshold, not equal to it
        clusters = by_column @ bins ** np.arange(points.columns)
        order = np.argsort(clusters, kind="stable")
        for members in np.split(order, np.searchsorted(clusters[order], np.arange(1, CLUSTERS))):
            filled = np.concatenate([members, np.repeat(members[:1], -len(members) % TILE)])
            tiles.append(filled.reshape(-1, TILE))
            starts.append(starts[-1] + len(tiles[-1]))
    per_variant = np.array_split(np.arange(len(tiles)), len(every))
    ids = np.concatenate(tiles)
    stored = [every[variant][np.concatenate([tiles[k] for k in some])] for variant, some in enumerate(per_variant)]
    head = np.zeros(points.points_at, np.uint8)
    head[: 4 * len(starts)] = np.array(starts, "<u4").view(np.uint8)
    values_by_tile = np.concatenate(stored).transpose(0, 2, 1).reshape(-1)
    return np.concatenate([head, ids.astype("<u2").reshape(-1).view(np.uint8), values_by_tile.view(np.uint8)])
