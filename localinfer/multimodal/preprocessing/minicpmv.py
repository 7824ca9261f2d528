"""An overview, and slices of a large image with about the same number of pixels each, as MiniCPM-V does."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, to_patches
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio


@dataclass(frozen=True)
class Slices:
    """Divides an image of more pixels than `image_size` x `image_size` into slices of so many, but `max_tiles` at
    most."""

    parameters: ImageParameters

    def sizes(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Return the size of the overview, and the rows and columns and the size of the slices: zeros for an image that
        is not divided."""
        check_aspect_ratio(height, width)
        p = self.parameters
        rows, columns = slice_grid(height, width, p.image_size, p.max_tiles)
        is_divided = rows * columns > 1
        overview = self._size(height, width, enlarge=not is_divided)
        if not is_divided:
            return overview, (0, 0), (0, 0)
        slice_height, slice_width = (nearest(n, count) / count for n, count in ((height, rows), (width, columns)))
        return overview, (rows, columns), self._size(slice_height, slice_width, enlarge=True)

    def _size(self, height: float, width: float, *, enlarge: bool) -> tuple[int, int]:
        """Return the size that an image or a slice of this size is resized to."""
        p = self.parameters
        if enlarge or height * width > p.image_size**2:
            ratio = width / height
            height = int(p.image_size / math.sqrt(ratio))
            width = int(height * ratio)
        return nearest(height, p.token_size), nearest(width, p.token_size)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        overview, (rows, columns), each = self.sizes(height, width)
        size = self.parameters.patch_size
        return [(h // size, w // size) for h, w in (overview, *[each] * (rows * columns))]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the overview, then the slices row by row."""
        p = self.parameters
        overview, (rows, columns), (height, width) = self.sizes(*image.pixels.shape[:2])
        inputs = [to_patches(resize(image.pixels, *overview, p.filter), p, OVERVIEW)]
        if rows:
            pixels = resize(image.pixels, rows * height, columns * width, p.filter)
            inputs += [
                to_patches(
                    pixels[row * height : (row + 1) * height, column * width : (column + 1) * width],
                    p, tile_name(row + 1, column + 1),
                )
                for row in range(rows)
                for column in range(columns)
            ]  # fmt: skip
        return inputs


def nearest(length: float, multiple: int) -> int:
    """Return the nearest multiple that is not 0."""
    return max(round(length / multiple) * multiple, multiple)


def slice_grid(height: int, width: int, size: int, max_slices: int) -> tuple[int, int]:
    """Return the rows and columns of the grid whose aspect ratio is nearest to that of the image, among those with as
    many slices as the image has times size * size pixels, or with one slice more or less. (1, 1): no slices."""
    count = min(math.ceil(height * width / size**2), max_slices)
    if count <= 1:
        return 1, 1
    numbers = [n for n in (count - 1, count, count + 1) if 1 < n <= max_slices]
    grids = [(rows, n // rows) for n in numbers for rows in range(n, 0, -1) if n % rows == 0]
    ratio = math.log(width / height)
    return min(grids, key=lambda grid: abs(ratio - math.log(grid[1] / grid[0])))
