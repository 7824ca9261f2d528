"""What an encoder needs to know of the positions of patches in a grid, computed in double precision: learned position
embeddings that are interpolated to the grid, and rotation angles in two dimensions."""

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def grid_positions(grid: tuple[int, int]) -> tuple[Doubles, Doubles]:
    """Return the row and the column of each patch."""
    rows, columns = grid
    return np.repeat(np.arange(rows, dtype=np.float64), columns), np.tile(np.arange(columns, dtype=np.float64), rows)


def cubic(distance: Doubles, a: float) -> Doubles:
    """Return the weight of bicubic interpolation (Keys, 1981) at each distance."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights: Doubles = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
    return weights


def linear(distance: Doubles) -> Doubles:
    """Return the weight of linear interpolation at each distance."""
    weights: Doubles = np.maximum(1 - np.abs(distance), 0)
    return weights


def resampling_matrix(
    n_out: int, n_in: int, kind: str, *, align_corners: bool = False, antialias: bool = False,
    zeros_beyond: bool = False,
) -> Doubles:  # fmt: skip
    """Return the matrix (n_out, n_in) that resamples n_in numbers to n_out, "linear" or "cubic".

    Samples are in the middle of equal cells, or, with `align_corners`, at equal distances from the first to the last.
    With `antialias`, the filter is as wide as the distance of the new samples if there are fewer of them. Beyond the
    ends, the first or the last number is repeated, or there are zeros with `zeros_beyond`; with `antialias`, nothing
    there has weight.
    """
    scale = (n_in - 1) / max(n_out - 1, 1) if align_corners else n_in / n_out
    at = np.arange(n_out) * scale if align_corners else (np.arange(n_out) + 0.5) * scale - 0.5
    stretch = max(scale, 1.0) if antialias else 1.0
    if kind == "linear" and not (antialias or zeros_beyond):
        at = np.clip(at, 0, n_in - 1)
    reach = int(np.ceil((2 if kind == "cubic" else 1) * stretch)) + 1
    taps = np.floor(at)[:, None].astype(np.int64) + np.arange(-reach, reach + 1)
    distance = (taps - at[:, None]) / stretch
    weights = cubic(distance, -0.5 if antialias else -0.75) if kind == "cubic" else linear(distance)
    if antialias or zeros_beyond:
        weights = np.where((taps >= 0) & (taps < n_in), weights, 0.0)
    if antialias:
        weights /= weights.sum(1, keepdims=True)
    matrix = np.zeros((n_out, n_in))
    np.add.at(matrix, (np.arange(n_out)[:, None], np.clip(taps, 0, n_in - 1)), weights)
    return matrix


def resample(
    table: NDArray[np.float32], grid: tuple[int, int], kind: str, *, align_corners: bool = False,
    antialias: bool = False, zeros_beyond: bool = False,
) -> NDArray[np.float32]:  # fmt: skip
    """Return position embeddings for a grid, (rows * columns, n): a table (rows, columns, n) of them, resampled."""
    if table.shape[:2] == grid:
        return table.reshape(-1, table.shape[-1])
    by_row, by_column = (
        resampling_matrix(
            n_out, n_in, kind, align_corners=align_corners, antialias=antialias, zeros_beyond=zeros_beyond
        )
        for n_out, n_in in zip(grid, table.shape[:2], strict=True)
    )
    resampled = np.tensordot(by_column, np.tensordot(by_row, table, (1, 0)), (1, 1))  # (columns, rows, n)
    return resampled.transpose(1, 0, 2).reshape(-1, table.shape[-1]).astype(np.float32)


def frequencies(n_rot: int, base: float = 10_000.0) -> Doubles:
    """Return base^(-2i / n_rot) for each of n_rot / 2 pairs."""
    powers: Doubles = base ** (-2.0 * np.arange(n_rot // 2) / n_rot)
    return powers


def thirds_angles(grid: tuple[int, int], head_size: int, base: float = 10_000.0) -> Doubles:
    """Return the angles of the pairs of a head, three times as many as each axis has: those of the first third belong
    to the frame of a video, 0 for an image, the others to the row and the column of a patch. Some values of a head may
    remain without rotation.
    """
    each = frequencies(head_size // 3 // 2 * 2, base)
    rows, columns = grid_positions(grid)
    return np.concatenate([axis[:, None] * each for axis in (np.zeros_like(rows), rows, columns)], 1)


def half_and_half_angles(
    grid: tuple[int, int], head_size: int, base: float = 10_000.0, *, columns_first: bool = False
) -> Doubles:
    """Return the angles of the pairs of a head, (patches, head_size / 2): those of the first half of the pairs belong
    to the row of a patch, those of the second half to its column, or the other way round with `columns_first`."""
    each, axes = frequencies(head_size // 2, base), grid_positions(grid)
    return np.concatenate([positions[:, None] * each for positions in (axes[::-1] if columns_first else axes)], 1)
