"""Images that are made smaller until their longer side fits, as Pixtral, Mistral 3 and LightOnOCR do."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, round_up, to_patches
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio, smart_size


@dataclass(frozen=True)
class LongestEdge:
    """Keeps the size of images that fit, apart from rounding up to whole tokens.

    Limits on the number of tokens, which the reference processor lacks, take the place of the longest edge.
    """

    parameters: ImageParameters

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image of this size is resized to."""
        p = self.parameters
        check_aspect_ratio(height, width)
        if p.min_pixels or p.max_pixels:
            limit = p.max_pixels or p.longest_edge**2
            return smart_size(height, width, p.token_size, p.min_pixels, limit, at_least=p.token_size)
        ratio = max(height, width) / p.longest_edge
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        return round_up(max(height, 1), p.token_size), round_up(max(width, 1), p.token_size)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        rows, columns = self.size(height, width)
        return [(rows // self.parameters.patch_size, columns // self.parameters.patch_size)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        height, width = self.size(*image.pixels.shape[:2])
        return [to_patches(resize(image.pixels, height, width, self.parameters.filter), self.parameters, OVERVIEW)]
