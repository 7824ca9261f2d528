"""Images that are resized to as many tokens as possible up to a limit, as Gemma 4 does."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, to_patches


@dataclass(frozen=True)
class MostTokens:
    """Keeps the aspect ratio, and makes small images larger, too. `max_pixels` is the limit."""

    parameters: ImageParameters

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image of this size is resized to."""
        p = self.parameters
        scale = math.sqrt(p.max_pixels / (height * width))
        new_height = math.floor(scale * height / p.token_size) * p.token_size
        new_width = math.floor(scale * width / p.token_size) * p.token_size
        longest = p.max_pixels // p.token_size**2 * p.token_size
        if new_height == 0:
            new_height, new_width = p.token_size, min(width // height * p.token_size, longest)
        elif new_width == 0:
            new_height, new_width = min(height // width * p.token_size, longest), p.token_size
        return new_height, new_width

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        rows, columns = self.size(height, width)
        return [(rows // self.parameters.patch_size, columns // self.parameters.patch_size)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        height, width = self.size(*image.pixels.shape[:2])
        return [to_patches(resize(image.pixels, height, width, self.parameters.filter), self.parameters, OVERVIEW)]
