"""Images that are padded to a square, as LLaVA 1.5 does."""

from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import EncoderInput
from localinfer.multimodal.preprocessing.fixed_size import FixedSize
from localinfer.multimodal.preprocessing.pixel_operations import Pixels, pad, resize

MAX_SIDE = 4096  # of a square: 50 MB


@dataclass(frozen=True)
class SquarePadding(FixedSize):
    """Adds borders of the mean color to make a square, which is then resized."""

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        return super().__call__(Image(self._square(self._limited(image.pixels))))

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
        top, left = (side - height) // 2, (side - width) // 2
        return pad(pixels, side, side, top=top, left=left, color=self.parameters.mean_color)
