"""Learned positions of a square grid, interpolated to the grid of an image.

The value at a new place is the sum of the values around it in the table, weighted by their distance: linearly (the two
neighbours in each direction), or by a cubic (four of them; Keys, 1981, "Cubic convolution interpolation").
"""

import math

import numpy as np

from localinfer.naive.formulas import Floats


def interpolated(
    table: Floats, grid: tuple[int, int], kind: str, *, align_corners: bool = False, antialias: bool = False,
    zeros_beyond: bool = False,
) -> Floats:  # fmt: skip
    """Return position embeddings for a grid, (rows * columns, n), of a table (rows, columns, n), in its dtype. `kind`
    is "linear" or "cubic"; see `line_weights` for the others."""
    (old_rows, old_columns, n), (rows, columns) = table.shape, grid
    how = {"align_corners": align_corners, "antialias": antialias, "zeros_beyond": zeros_beyond}
    result = np.zeros((rows, columns, n), table.dtype)
    for row in range(rows):
        of_rows = line_weights(row, rows, old_rows, kind, **how)
        line = sum((weight * table[at] for at, weight in of_rows.items()), np.zeros_like(table[0]))
        for column in range(columns):
            for at, weight in line_weights(column, columns, old_columns, kind, **how).items():
                result[row, column] += weight * line[at]
    return result.reshape(-1, n)


def line_weights(
    number: int, n_out: int, n_in: int, kind: str, *, align_corners: bool, antialias: bool, zeros_beyond: bool
) -> dict[int, float]:
    """Return the weights of the samples of a line of `n_in` that make up sample `number` of `n_out`, by their place.

    Samples are in the middle of equal cells, or, with `align_corners`, at equal distances from the first to the last.
    Beyond the ends, the first or the last one is repeated, or there are zeros with `zeros_beyond`. With `antialias`,
    the weights reach further if there are fewer samples than before, and places beyond the ends have none.
    """
    scale = (n_in - 1) / max(n_out - 1, 1) if align_corners else n_in / n_out
    at = number * scale if align_corners else (number + 0.5) * scale - 0.5
    stretch = max(scale, 1.0) if antialias else 1.0
    reach = (2 if kind == "cubic" else 1) * stretch
    weights: dict[int, float] = {}
    for place in range(math.ceil(at - reach), math.floor(at + reach) + 1):
        distance = abs(place - at) / stretch
        weight = cubic_weight(distance, -0.5 if antialias else -0.75) if kind == "cubic" else max(0.0, 1 - distance)
        if not (antialias or zeros_beyond) or 0 <= place < n_in:
            near = min(max(place, 0), n_in - 1)
            weights[near] = weights.get(near, 0.0) + weight
    total = sum(weights.values()) if antialias else 1.0
    return {place: weight / total for place, weight in weights.items()}


def cubic_weight(distance: float, a: float) -> float:
    """Return the weight of a sample at a distance, by Keys' cubic with the parameter a."""
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    if distance < 2:
        return a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    return 0.0
