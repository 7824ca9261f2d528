"""Tiles of the image stretched to the grid with the nearest aspect ratio, then an overview, as InternVL does."""

from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, tile, to_patches


@dataclass(frozen=True)
class NearestGrid:
    """Divides an image into `min_tiles` to `max_tiles` tiles. An image of one tile has no other overview."""

    parameters: ImageParameters

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        p = self.parameters
        columns, rows = nearest_grid(height, width, p.image_size, p.min_tiles, p.max_tiles)
        side = p.image_size // p.patch_size
        return [(side, side)] * (rows * columns + 1 if rows * columns > 1 else 1)

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the tiles row by row, then the overview."""
        p = self.parameters
        height, width = image.pixels.shape[:2]
        columns, rows = nearest_grid(height, width, p.image_size, p.min_tiles, p.max_tiles)
        overview = to_patches(resize(image.pixels, p.image_size, p.image_size, p.filter), p, OVERVIEW)
        if rows * columns == 1:
            return [overview]
        pixels = resize(image.pixels, rows * p.image_size, columns * p.image_size, p.filter)
        return [
            *(
                to_patches(tile(pixels, p.image_size, row, column), p, tile_name(row + 1, column + 1))
                for row in range(rows)
                for column in range(columns)
            ),
            overview,
        ]


def nearest_grid(height: int, width: int, size: int, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """Return the columns and rows of the grid whose aspect ratio is nearest to that of the image.

    Of two grids that are equally near, the one with more tiles is chosen if the image has more than half of its pixels.
    """
    sides = range(1, max_tiles + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if min_tiles <= columns * rows <= max_tiles]
    best, best_difference = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / rows)
        large_enough = width * height > 0.5 * size * size * columns * rows
        if difference < best_difference or (difference == best_difference and large_enough):
            best, best_difference = (columns, rows), difference
    return best
