"""Images that are stretched to one size, as Gemma 3 does."""

from dataclasses import dataclass

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import resize, to_patches


@dataclass(frozen=True)
class FixedSize:
    """Stretches every image to a square. Gemma 3's "pan and scan", crops of wide and tall images, is off by default."""

    parameters: ImageParameters

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:  # noqa: ARG002 the same for every image
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""
        side = self.parameters.image_size // self.parameters.patch_size
        return [(side, side)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        size = self.parameters.image_size
        return [to_patches(resize(image.pixels, size, size, self.parameters.filter), self.parameters, OVERVIEW)]
