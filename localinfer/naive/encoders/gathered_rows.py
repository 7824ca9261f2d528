"""Operations that read rows by their numbers. Rows stand for places: patches of an image, moments of a sound.

A table says which rows a result is made of, one line for each result.

- Pixel shuffle and the merging of patches put the rows of a square side by side (`side_by_side`).
- A convolution is a matrix times the rows under it, side by side: the columns of the matrix are its taps.
- A depthwise convolution has one weight for each tap and column (`weighted_sums`).
- Pooling is the mean of rows (`means`).
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.naive.formulas import Floats

Numbers = NDArray[np.int32]


def side_by_side(x: Floats, numbers: Numbers) -> Floats:
    """Return the rows of x that each line of `numbers` (results, width) names, one after the other: (results, width *
    n)."""
    return x[numbers].reshape(len(numbers), -1)


def means(x: Floats, numbers: Numbers) -> Floats:
    """Return the mean of the rows of x that each line of `numbers` names."""
    total = np.zeros((len(numbers), x.shape[1]), x.dtype)
    for of_place in numbers.T:
        total += x[of_place]
    return total / numbers.shape[1]


def weighted_sums(x: Floats, numbers: Numbers, weight: Floats, bias: Floats | float) -> Floats:
    """Return bias + the sum of weight[j] * x[numbers[i][j]] for each i, column by column; row -1 is zeros. `weight` is
    (taps, n)."""
    padded = np.concatenate([x, np.zeros((1, x.shape[1]), x.dtype)])
    total = np.zeros((len(numbers), x.shape[1]), x.dtype)
    for tap, of_tap in zip(weight, numbers.T, strict=True):
        total += tap * padded[of_tap]
    return total + bias
