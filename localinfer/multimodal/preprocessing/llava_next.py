"""An overview, and tiles of the image padded to one of several sizes, as LLaVA 1.6 does."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import Pixels, check_tiles, pad, resize, tile, to_patches

Resolution = tuple[int, int]  # width, height


@dataclass(frozen=True)
class AnyResolution:
    """Chooses the resolution that shows most of the image with the least padding."""

    parameters: ImageParameters

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        size = self.parameters.image_size
        wide, high = self._resolution(height, width)
        side = size // self.parameters.patch_size
        return [(side, side)] * (1 + (wide // size) * (high // size))

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the overview, then the tiles row by row."""
        p = self.parameters
        height, width = image.pixels.shape[:2]
        wide, high = self._resolution(height, width)
        canvas = self._padded(image.pixels, high, wide)
        return [
            to_patches(resize(image.pixels, p.image_size, p.image_size, p.filter), p, OVERVIEW),
            *(
                to_patches(tile(canvas, p.image_size, row, column), p, tile_name(row + 1, column + 1))
                for row in range(high // p.image_size)
                for column in range(wide // p.image_size)
            ),
        ]

    def _resolution(self, height: int, width: int) -> Resolution:
        """Return the resolution for an image of this size. Raises LocalInferError if it has too many tiles."""
        wide, high = best_resolution(height, width, self.parameters.resolutions)
        check_tiles(height, width, high // self.parameters.image_size, wide // self.parameters.image_size)
        return wide, high

    def _padded(self, pixels: Pixels, height: int, width: int) -> Pixels:
        """Return the image, resized to fit, in the middle of a black canvas."""
        old_height, old_width = pixels.shape[:2]
        new_height, new_width = fitted_size(old_height, old_width, height, width)
        resized = resize(pixels, new_height, new_width, self.parameters.filter)
        return pad(resized, height, width, top=(height - new_height) // 2, left=(width - new_width) // 2)


def fitted_size(height: int, width: int, max_height: int, max_width: int) -> tuple[int, int]:
    """Return the largest size with the same aspect ratio that fits, rounded up."""
    scale_width, scale_height = max_width / width, max_height / height
    if scale_width < scale_height:
        return min(math.ceil(height * scale_width), max_height), max_width
    return max_height, min(math.ceil(width * scale_height), max_width)


def best_resolution(height: int, width: int, resolutions: tuple[Resolution, ...]) -> Resolution:
    """Return the resolution that shows most pixels of the image; among equal ones, the smallest."""

    def quality(resolution: Resolution) -> tuple[int, int]:
        wide, high = resolution
        scale = min(wide / width, high / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, -(wide * high - shown)

    return max(resolutions, key=quality)
