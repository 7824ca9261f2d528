"""Images that are padded to a square, as LLaVA 1.5 does."""

from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import Pixels, pad, resize, to_patches

MAX_SIDE = 4096  # of a square: 50 MB


@dataclass(frozen=True)
class SquarePadding:
    """Adds borders of the mean color to make a square, which is then resized."""

    parameters: ImageParameters

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:  # noqa: ARG002 the same for every image
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        side = self.parameters.image_size // self.parameters.patch_size
        return [(side, side)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        size = self.parameters.image_size
        square = self._square(self._limited(image.pixels))
        return [to_patches(resize(square, size, size, self.parameters.filter), self.parameters, OVERVIEW)]

    def _limited(self, pixels: Pixels) -> Pixels:
        """Return the image, made smaller if its longer side is more than MAX_SIDE."""
        height, width = pixels.shape[:2]
        scale = MAX_SIDE / max(height, width)
        if scale >= 1:
            return pixels
        return resize(pixels, max(1, round(height * scale)), max(1, round(width * scale)), self.parameters.filter)

    def _square(self, pixels: Pixels) -> Pixels:
        """Return the image in the middle of a square."""
        height, width = pixels.shape[:2]
        side = max(height, width)
        color = tuple(int(value * 255) for value in self.parameters.mean)
        return pad(pixels, side, side, top=(side - height) // 2, left=(side - width) // 2, color=color)
