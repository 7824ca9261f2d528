"""Tiles of the image stretched to the grid with the nearest aspect ratio, and the image padded to a square, as
DeepSeek-OCR does."""

from dataclasses import replace

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.internvl import nearest_grid
from localinfer.multimodal.preprocessing.pixel_operations import Pixels, pad, resize, tile, to_patches

PATCH_SIZE, TILE_SIZE, OVERVIEW_SIZE = 16, 640, 1024  # files have those of CLIP


class TilesAndPaddedOverview:
    """Divides an image that is larger than a tile into `min_tiles` to `max_tiles` tiles. The whole image has borders of
    the mean color."""

    def __init__(self, parameters: ImageParameters, tile_size: int = TILE_SIZE, overview: int = OVERVIEW_SIZE) -> None:
        self.parameters = replace(parameters, patch_size=PATCH_SIZE, image_size=overview)
        self._tile_size = tile_size

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        columns, rows = self._tiles(height, width)
        side, whole = self._tile_size // PATCH_SIZE, self.parameters.image_size // PATCH_SIZE
        return [*[(side, side)] * (rows * columns), (whole, whole)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the tiles row by row, then the overview."""
        p, size = self.parameters, self._tile_size
        columns, rows = self._tiles(*image.pixels.shape[:2])
        stretched = resize(image.pixels, rows * size, columns * size, p.filter) if rows else image.pixels
        return [
            *(
                to_patches(tile(stretched, size, row, column), p, tile_name(row + 1, column + 1))
                for row in range(rows)
                for column in range(columns)
            ),
            to_patches(self._padded(image.pixels), p, OVERVIEW),
        ]

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return the columns and rows of tiles; none for a small image."""
        p, size = self.parameters, self._tile_size
        if max(height, width) <= size:
            return 0, 0
        return nearest_grid(height, width, size, p.min_tiles, p.max_tiles)

    def _padded(self, pixels: Pixels) -> Pixels:
        """Return the image in the middle of a square."""
        side, (height, width) = self.parameters.image_size, pixels.shape[:2]
        if height > width:
            new_height, new_width = side, max(1, round(width / height * side))
        else:
            new_height, new_width = max(1, round(height / width * side)), side
        resized = resize(pixels, new_height, new_width, self.parameters.filter)
        top, left = round((side - new_height) / 2), round((side - new_width) / 2)
        return pad(resized, side, side, top=top, left=left, color=self.parameters.mean_color)
