"""Images and frames of videos on a canvas of whole tokens, as GLM-5-Next does: at the top left, made smaller only if
they must be."""

import math
from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import pad, resize, round_up, to_patches
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio

PAIR = 2  # frames that become one row of tokens; an image is two equal frames
Size = tuple[int, int]


@dataclass(frozen=True)
class CanvasLimits:
    """The size of a token, and the fewest and the most pixels of all `n` frames."""

    token_size: int
    fewest: int
    most: int
    n: int = PAIR

    @property
    def n_aligned(self) -> int:
        """The number of frames that counts for comparisons: an even one."""
        return max(PAIR, round(self.n / PAIR) * PAIR)

    def canvas(self, height: int, width: int) -> Size:
        """Return the size of the canvas of frames of this size."""
        rows, columns = round_up(height, self.token_size), round_up(width, self.token_size)
        if self.n_aligned * rows * columns < self.fewest:
            grow = math.sqrt(self.fewest / (self.n * height * width))
            rows, columns = (round_up(math.ceil(side * grow), self.token_size) for side in (height, width))
        fits = self.n_aligned * rows * columns <= self.most
        return (rows, columns) if fits else self.largest_canvas(height, width)

    def largest_canvas(self, height: int, width: int) -> Size:
        """Return the largest canvas within the limit, of frames that are made smaller."""
        best, low, high = (self.token_size, self.token_size), 1, height
        while low <= high:
            middle = (low + high) // 2
            sides = middle, max(1, width * middle // height)
            rows, columns = (round_up(side, self.token_size) for side in sides)
            if self.n_aligned * rows * columns <= self.most:
                best, low = (rows, columns), middle + 1
            else:
                high = middle - 1
        return best

    def sizes(self, height: int, width: int) -> tuple[Size, Size]:
        """Return the size that frames of this size are resized to, and that of their canvas. Raises LocalInferError for
        strips."""
        check_aspect_ratio(height, width)
        rows, columns = self.canvas(height, width)
        scale = min(rows / height, columns / width)
        if self.n * height * width >= self.fewest:
            scale = min(1.0, scale)
        content = max(1, min(rows, math.floor(height * scale))), max(1, min(columns, math.floor(width * scale)))
        return content, (rows, columns)


@dataclass(frozen=True)
class AlignedCanvas:
    """Adds black pixels at the right and at the bottom. Images with too few pixels become larger."""

    parameters: ImageParameters

    def sizes(self, height: int, width: int) -> tuple[Size, Size]:
        """Return the size that an image of this size is resized to, and that of its canvas."""
        p = self.parameters
        return CanvasLimits(p.token_size, PAIR * p.min_pixels, PAIR * p.max_pixels).sizes(height, width)

    def grids(self, height: int, width: int) -> list[Size]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        rows, columns = self.sizes(height, width)[1]
        return [(rows // self.parameters.patch_size, columns // self.parameters.patch_size)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        content, canvas = self.sizes(*image.pixels.shape[:2])
        resized = resize(image.pixels, *content, self.parameters.filter)
        return [to_patches(pad(resized, *canvas), self.parameters, OVERVIEW)]
