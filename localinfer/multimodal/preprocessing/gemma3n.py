"""Images that are stretched to one size and read by a convolution, as Gemma 3n does."""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import Pixels, normalized_values, resize

WIDTH, STRIDE = 3, 2  # of the convolution


@dataclass(frozen=True)
class StemSquares:
    """Stretches every image to a square. Its inputs are the overlapping squares of pixels that the first convolution
    reads, with zeros after the last row and column."""

    parameters: ImageParameters

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:  # noqa: ARG002 the same for every image
        """Return the rows and columns of squares of each encoder input that an image of this size becomes."""
        side = -(-self.parameters.image_size // STRIDE)
        return [(side, side)]

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return one input."""
        size = self.parameters.image_size
        return [to_squares(resize(image.pixels, size, size, self.parameters.filter), self.parameters)]


def to_squares(pixels: Pixels, parameters: ImageParameters) -> EncoderInput:
    """Return the squares that a convolution of width 3 and stride 2 reads, each in the order [channel][y][x]. An odd
    side is padded before the first pixel, too."""
    values = normalized_values(parameters)
    planes = np.stack([values[channel][pixels[:, :, channel]] for channel in range(3)])
    around = [(side % STRIDE, 1) for side in pixels.shape[:2]]
    squares = sliding_window_view(np.pad(planes, [(0, 0), *around]), (WIDTH, WIDTH), (1, 2))[:, ::STRIDE, ::STRIDE]
    rows, columns = squares.shape[1:3]
    flat = squares.transpose(1, 2, 0, 3, 4).reshape(rows * columns, -1)
    return EncoderInput(flat, (rows, columns), OVERVIEW)
