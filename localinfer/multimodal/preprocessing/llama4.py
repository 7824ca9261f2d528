"""Tiles of the image padded to the best canvas of tiles, then an overview, as Llama 4 does."""

import math
from dataclasses import dataclass

import numpy as np

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import pad, resize, tile, to_patches


@dataclass(frozen=True)
class BestCanvas:
    """Chooses a grid of up to `max_tiles` tiles. Images are not made larger than one tile.

    Values are rounded to bfloat16 when they are normalized, as the reference processor does.
    """

    parameters: ImageParameters

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        rows, columns = best_canvas(height, width, self.parameters.image_size, self.parameters.max_tiles)
        side = self.parameters.image_size // self.parameters.patch_size
        return [(side, side)] * (rows * columns + 1 if rows * columns > 1 else 1)

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the tiles row by row, then the overview; an image of one tile has no other overview."""
        p = self.parameters
        size = p.image_size
        height, width = image.pixels.shape[:2]
        rows, columns = best_canvas(height, width, size, p.max_tiles)
        resized = resize(image.pixels, *fitted_size(height, width, rows * size, columns * size, size), p.filter)
        canvas = pad(resized, rows * size, columns * size)
        if rows * columns == 1:
            return [to_patches(canvas, p, OVERVIEW, bfloat16=True)]
        return [
            *(
                to_patches(tile(canvas, size, row, column), p, tile_name(row + 1, column + 1), bfloat16=True)
                for row in range(rows)
                for column in range(columns)
            ),
            to_patches(resize(image.pixels, size, size, p.filter), p, OVERVIEW, bfloat16=True),
        ]


def best_canvas(height: int, width: int, size: int, max_tiles: int) -> tuple[int, int]:
    """Return the rows and columns of the canvas that an image fits: enlarged least, else reduced least."""
    grids = [
        (rows, n // rows)
        for n in range(max_tiles, 0, -1)
        for rows in range(1, n + 1)
        if n % rows == 0
    ]  # fmt: skip
    image = np.array((height, width), np.float32)  # float32 decides which scales are equal
    scales = {grid: float((np.array(grid, np.float32) * size / image).min()) for grid in grids}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales.values())
    return min((grid for grid in grids if scales[grid] == chosen), key=lambda grid: grid[0] * grid[1])


def fitted_size(height: int, width: int, canvas_height: int, canvas_width: int, size: int) -> tuple[int, int]:
    """Return the largest size with the same aspect ratio that fits, but not enlarged beyond a tile.

    The reference processor computes with tensors, in float32, where the canvas is the limit, and with Python's numbers
    where the image or the tile is; the rounding depends on it.
    """
    max_height, scale_height = _limit(height, canvas_height, size)
    max_width, scale_width = _limit(width, canvas_width, size)
    if scale_width < scale_height:
        return max(1, min(math.floor(height * scale_width), max_height)), max_width
    return max_height, max(1, min(math.floor(width * scale_height), max_width))


def _limit(side: int, canvas_side: int, size: int) -> tuple[int, float | np.float32]:
    """Return the longest that a side of the image may become, and by which factor."""
    allowed = max(side, size)
    if canvas_side < allowed:
        return canvas_side, np.float32(canvas_side) / np.float32(side)
    return allowed, allowed / side
