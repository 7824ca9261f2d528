"""Images of any size, resized to whole tokens, as Qwen2-VL's `smart_resize` does.

The aspect ratio is kept as far as both sides are multiples of a token's size, and the number of pixels lies between two
limits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from localinfer.errors import LocalInferError
from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, to_patches

MAX_ASPECT_RATIO = 200
Enlarge = Callable[[int, int, int], tuple[int, int]]  # height, width and the size of a token -> height, width


@dataclass(frozen=True)
class SmartResize:
    """Resizes every image to a size that depends on its own. `enlarge` handles sides that are smaller than a token."""

    parameters: ImageParameters
    enlarge: Enlarge = lambda height, width, _: (height, width)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image of this size is resized to."""
        p = self.parameters
        height, width = self.enlarge(height, width, p.token_size)
        check_aspect_ratio(height, width)
        return smart_size(height, width, p.token_size, p.min_pixels, p.max_pixels)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        rows, columns = self.size(height, width)
        return [(rows // self.parameters.patch_size, columns // self.parameters.patch_size)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        height, width = self.size(*image.pixels.shape[:2])
        return [to_patches(resize(image.pixels, height, width, self.parameters.filter), self.parameters, OVERVIEW)]


def smart_size(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int, *, at_least: int = 0
) -> tuple[int, int]:
    """Return the nearest size whose sides are multiples of `factor`, between two numbers of pixels.

    Sides that are rounded to less than `at_least` count as `at_least` before the size is compared with the limits.
    """
    new_height = max(at_least, round(height / factor) * factor)
    new_width = max(at_least, round(width / factor) * factor)
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return max(new_height, factor), max(new_width, factor)


def check_aspect_ratio(height: int, width: int) -> None:
    """Raise LocalInferError for a strip that would become too many tokens."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        problem = f"the longer side may be at most {MAX_ASPECT_RATIO} times the shorter one"
        raise LocalInferError(f"an image of {width} x {height} pixels: {problem}")


def enlarge_to_token(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return the size at which both sides are at least `factor`, as GLM-4V does."""
    if height >= factor and width >= factor:
        return height, width
    scale = max(factor / height, factor / width)
    return int(height * scale), int(width * scale)


def enlarge_sides_to_token(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return the size at which both sides are at least `factor`, as PaddleOCR-VL does: rounded, one after the other."""
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return height, width
