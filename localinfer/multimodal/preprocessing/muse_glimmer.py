"""Images that are stretched to the whole tokens nearest to their aspect ratio, as Muse Glimmer does."""

import math
from dataclasses import dataclass
from itertools import product

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, to_patches
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio


@dataclass(frozen=True)
class NearestTokens:
    """Makes images with more than `max_pixels` smaller. Of the numbers of tokens that are nearest in both directions,
    those with the nearest aspect ratio count. Of equally near ones, as those of a square image are, transformers takes
    the first of a Python set, whose order depends on numbers only; so does this class."""

    parameters: ImageParameters

    def tokens(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and the columns of tokens of an image of this size."""
        p = self.parameters
        check_aspect_ratio(height, width)
        most, rows, columns = p.max_pixels // p.token_size**2, height / p.token_size, width / p.token_size
        if rows * columns > most:
            rows, columns = math.sqrt(most * height / width), math.sqrt(most * width / height)
        around = set(product((math.floor(rows), math.ceil(rows)), (math.floor(columns), math.ceil(columns))))
        fitting = [each for each in around if min(each) >= 1 and math.prod(each) <= most]
        if not fitting:
            return max(1, round(rows)), max(1, round(columns))
        return min(fitting, key=lambda each: abs(each[0] / each[1] - height / width))

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        rows, columns = self.tokens(height, width)
        return [(rows * self.parameters.merge, columns * self.parameters.merge)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        p = self.parameters
        rows, columns = self.tokens(*image.pixels.shape[:2])
        resized = resize(image.pixels, rows * p.token_size, columns * p.token_size, p.filter)
        return [to_patches(resized, p, OVERVIEW)]
