"""Images that are made smaller until they fit and then padded to whole tokens, as Kimi-VL does."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import pad, resize, round_up, to_patches

MAX_PATCHES_PER_SIDE = 512  # of the table of position embeddings


@dataclass(frozen=True)
class PaddedTokens:
    """Adds black pixels at the right and at the bottom. Images are never made larger."""

    parameters: ImageParameters

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image of this size is resized to, before padding."""
        p = self.parameters
        n_patches = max(1, height // p.patch_size) * max(1, width // p.patch_size)
        longest = MAX_PATCHES_PER_SIDE * p.patch_size
        limit = p.max_pixels // p.patch_size**2
        scale = min(1.0, math.sqrt(limit / n_patches), longest / height, longest / width)
        return min(longest, max(1, int(height * scale))), min(longest, max(1, int(width * scale)))

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        p = self.parameters
        new_height, new_width = self.size(height, width)
        rows, columns = (round_up(side, p.token_size) // p.patch_size for side in (new_height, new_width))
        return [(rows, columns)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        p = self.parameters
        height, width = self.size(*image.pixels.shape[:2])
        resized = resize(image.pixels, height, width, p.filter)
        return [to_patches(pad(resized, round_up(height, p.token_size), round_up(width, p.token_size)), p, OVERVIEW)]
