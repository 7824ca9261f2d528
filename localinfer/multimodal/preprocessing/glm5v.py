"""Images on a canvas of whole tokens, as GLM-5-Next does: at the top left, made smaller only if they must be."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import pad, resize, round_up, to_patches
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio


@dataclass(frozen=True)
class AlignedCanvas:
    """Adds black pixels at the right and at the bottom. Images with too few pixels become larger."""

    parameters: ImageParameters

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the canvas of an image of this size."""
        p = self.parameters
        rows, columns = round_up(height, p.token_size), round_up(width, p.token_size)
        if rows * columns < p.min_pixels:
            grow = math.sqrt(p.min_pixels / (height * width))
            rows, columns = (round_up(math.ceil(side * grow), p.token_size) for side in (height, width))
        return self.largest_canvas(height, width) if rows * columns > p.max_pixels else (rows, columns)

    def largest_canvas(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest canvas with at most `max_pixels` of the image, made smaller."""
        p, low, high = self.parameters, 1, height
        best = p.token_size, p.token_size
        while low <= high:
            middle = (low + high) // 2
            rows, columns = round_up(middle, p.token_size), round_up(max(1, width * middle // height), p.token_size)
            if rows * columns <= p.max_pixels:
                best, low = (rows, columns), middle + 1
            else:
                high = middle - 1
        return best

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image of this size is resized to, before padding."""
        rows, columns = self.canvas(height, width)
        scale = min(rows / height, columns / width)
        if height * width >= self.parameters.min_pixels:
            scale = min(1.0, scale)
        return max(1, min(rows, math.floor(height * scale))), max(1, min(columns, math.floor(width * scale)))

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        check_aspect_ratio(height, width)
        rows, columns = self.canvas(height, width)
        return [(rows // self.parameters.patch_size, columns // self.parameters.patch_size)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        height, width = image.pixels.shape[:2]
        check_aspect_ratio(height, width)
        resized = resize(image.pixels, *self.size(height, width), self.parameters.filter)
        return [to_patches(pad(resized, *self.canvas(height, width)), self.parameters, OVERVIEW)]
