"""One input of any size, or tiles and an overview of a large image, as LFM2-VL does."""

from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.internvl import nearest_grid
from localinfer.multimodal.preprocessing.pixel_operations import resize, tile, to_patches
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio, smart_size

TILE_SIZE = 512  # these are not in projector files
MIN_TILES = 2
MAX_TILES = 10
TOLERANCE = 2  # an image with more than twice as many pixels as one input may have is divided


@dataclass(frozen=True)
class LargeImageTiles:
    """Divides images that are much larger than one encoder input."""

    parameters: ImageParameters

    def overview_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the input that shows the whole image."""
        p = self.parameters
        check_aspect_ratio(height, width)
        return smart_size(height, width, p.token_size, p.min_pixels, p.max_pixels, at_least=p.token_size)

    def tile_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the columns and rows of tiles, 1 and 1 for an image that is not divided."""
        p = self.parameters
        rounded = (max(p.patch_size, round(side / p.token_size) * p.token_size) for side in (height, width))
        rounded_height, rounded_width = rounded
        if rounded_height * rounded_width <= p.max_pixels * TOLERANCE:
            return 1, 1
        return nearest_grid(height, width, TILE_SIZE, MIN_TILES, MAX_TILES)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        size = self.parameters.patch_size
        overview_height, overview_width = self.overview_size(height, width)
        overview = (overview_height // size, overview_width // size)
        columns, rows = self.tile_grid(height, width)
        side = TILE_SIZE // size
        return [*([(side, side)] * (rows * columns if rows * columns > 1 else 0)), overview]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the tiles row by row, then the overview."""
        p = self.parameters
        height, width = image.pixels.shape[:2]
        overview = to_patches(resize(image.pixels, *self.overview_size(height, width), p.filter), p, OVERVIEW)
        columns, rows = self.tile_grid(height, width)
        if rows * columns == 1:
            return [overview]
        pixels = resize(image.pixels, rows * TILE_SIZE, columns * TILE_SIZE, p.filter)
        return [
            *(
                to_patches(tile(pixels, TILE_SIZE, row, column), p, tile_name(row + 1, column + 1))
                for row in range(rows)
                for column in range(columns)
            ),
            overview,
        ]
