"""What an encoder reads: the patches of an image, or of a tile of it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OVERVIEW = "overview"  # the name of the input that shows the whole image


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """Normalized patches, float32 (n, channels * patch * patch), each in the order [channel][y][x].

    `grid` is the number of rows and columns of patches, which follow each other row by row. `name` says which part of
    the image this is: "overview", or "row 1, column 2".
    """

    patches: NDArray[np.float32]
    grid: tuple[int, int]
    name: str


def tile_name(row: int, column: int) -> str:
    """Return the name of a tile, whose row and column count from 1."""
    return f"row {row}, column {column}"
