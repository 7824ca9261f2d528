"""Index tables of rows, which stand for the patches of a grid, row after row."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int32]


def blocks(grid: tuple[int, int], size: int) -> Indices:
    """Return the patches of each block of size x size patches, (blocks, size * size): blocks and the patches of a block
    are in the order of rows, then columns. The grid must be a multiple of the size."""
    rows, columns = grid
    numbers = np.arange(rows * columns, dtype=np.int32).reshape(rows // size, size, columns // size, size)
    return numbers.transpose(0, 2, 1, 3).reshape(-1, size * size)


def consecutive(shape: tuple[int, ...]) -> Indices:
    """Return the numbers of all rows, in this shape."""
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def inverse(order: Indices) -> Indices:
    """Return the permutation that undoes another."""
    result = np.empty(order.size, np.int32)
    result[order.reshape(-1)] = np.arange(order.size, dtype=np.int32)
    return result


def inverse_of_first(order: Indices, count: int) -> Indices:
    """Return where an order that has each of the numbers below `count` once, and others, has them."""
    places = np.flatnonzero(order < count).astype(np.int32)
    result = np.empty(count, np.int32)
    result[order[places]] = places
    return result


def windows(grid: tuple[int, int], size: int) -> tuple[Indices, NDArray[np.int64]]:
    """Divide a grid into windows of size x size cells, smaller ones at its lower and right edges. Return the cells in
    the order of windows, and the number of cells in each window."""
    rows, columns = grid
    numbers = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    parts = [
        numbers[row : row + size, column : column + size].reshape(-1)
        for row in range(0, rows, size)
        for column in range(0, columns, size)
    ]
    return np.concatenate(parts), np.array([len(part) for part in parts])
