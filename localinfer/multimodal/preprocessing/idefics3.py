"""Square tiles and an overview, as Idefics3 and SmolVLM do."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import MAX_TILES, ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import check_tiles, resize, round_up, tile, to_patches
from localinfer.multimodal.preprocessing.smart_resize import smart_size

MAX_LONGEST_EDGE = 4096


@dataclass(frozen=True)
class Idefics3Tiles:
    """Resizes the longer side, stretches the image to whole tiles, and resizes that to the overview.

    Limits on the number of tokens, which the reference processor lacks, choose the number of tiles instead of the
    longest edge.
    """

    parameters: ImageParameters

    def sizes(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the size of the image with its longest edge, and the size in whole tiles. Raises LocalInferError if
        they are too many."""
        p = self.parameters
        if p.min_pixels or p.max_pixels or not p.longest_edge:
            most = p.max_pixels or min(height * width, MAX_TILES * p.image_size**2)
            first = tiled = smart_size(height, width, p.image_size, p.min_pixels, most)
        else:
            first = longest_edge_size(height, width, p.longest_edge)
            tiled = whole_tiles(*first, p.image_size)
        check_tiles(height, width, tiled[0] // p.image_size, tiled[1] // p.image_size)
        return first, tiled

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        p = self.parameters
        _, (tiled_height, tiled_width) = self.sizes(height, width)
        n = (tiled_height // p.image_size) * (tiled_width // p.image_size)
        side = p.image_size // p.patch_size
        return [(side, side)] * (n + 1 if n > 1 else 1)

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the overview, then the tiles row by row; one input if the image has only one tile."""
        p = self.parameters
        first, tiled = self.sizes(*image.pixels.shape[:2])
        pixels = resize(resize(image.pixels, *first, p.filter), *tiled, p.filter)
        overview = to_patches(resize(pixels, p.image_size, p.image_size, p.filter), p, OVERVIEW)
        rows, columns = tiled[0] // p.image_size, tiled[1] // p.image_size
        if rows * columns == 1:
            return [overview]
        return [
            overview,
            *(
                to_patches(tile(pixels, p.image_size, row, column), p, tile_name(row + 1, column + 1))
                for row in range(rows)
                for column in range(columns)
            ),
        ]


def longest_edge_size(height: int, width: int, longest_edge: int) -> tuple[int, int]:
    """Return the size whose longer side is `longest_edge`, and whose shorter one is even, but at most 4096."""
    ratio = width / height
    if width >= height:
        width, height = longest_edge, int(longest_edge / ratio)
        height += height % 2
    else:
        height, width = longest_edge, int(longest_edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > MAX_LONGEST_EDGE:
        width, height = MAX_LONGEST_EDGE, int(MAX_LONGEST_EDGE / ratio)
    elif height > MAX_LONGEST_EDGE:
        height, width = MAX_LONGEST_EDGE, int(MAX_LONGEST_EDGE * ratio)
    return max(height, 1), max(width, 1)


def whole_tiles(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the size in whole tiles; the aspect ratio decides the shorter side after the longer one is rounded up."""
    ratio = width / height
    if width >= height:
        width = round_up(width, size)
        return max(size, round_up(int(width / ratio), size)), width
    height = round_up(height, size)
    return height, max(size, math.ceil(int(height * ratio) / size) * size)
