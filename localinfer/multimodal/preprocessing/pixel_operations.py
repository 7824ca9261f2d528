"""Operations on pixels: resizing, padding, and cutting into normalized patches.

Pillow resizes, with antialiasing, so the pixels are those of reference processors that use Pillow. Those that use
torchvision round some pixels to a neighbouring value: at most 1 of 255.
"""

import math

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.multimodal.preprocessing.encoder_input import EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import MAX_PIXELS, MAX_TILES, Filter, ImageParameters

Pixels = NDArray[np.uint8]  # (height, width, 3)
MAX_SIDE = 1 << 16
BLACK = (0, 0, 0)


def resize(pixels: Pixels, height: int, width: int, filter_name: Filter) -> Pixels:
    """Return the pixels stretched to a size."""
    from PIL import Image  # takes 30 ms, and only images need it

    if pixels.shape[:2] == (height, width):
        return pixels
    check_size(pixels, height, width)
    filters = {
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
    }
    return np.asarray(Image.fromarray(pixels).resize((width, height), filters[filter_name]))


def pad(
    pixels: Pixels, height: int, width: int, *, top: int = 0, left: int = 0, color: tuple[int, ...] = BLACK
) -> Pixels:
    """Return a canvas of a color with the pixels at a place in it."""
    check_size(pixels, height, width)
    canvas = np.empty((height, width, 3), np.uint8)
    canvas[:] = color
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas


def check_size(pixels: Pixels, height: int, width: int) -> None:
    """Raise LocalInferError if an image would become larger than any model needs."""
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and height * width <= MAX_PIXELS):
        what = f"{describe(*pixels.shape[:2])} would become {width} x {height} pixels; the limit is {MAX_PIXELS} in all"
        raise LocalInferError(what)


def check_tiles(height: int, width: int, rows: int, columns: int) -> None:
    """Raise LocalInferError if an image of this size would become more tiles than any model needs."""
    if rows * columns > MAX_TILES:
        what = f"would become {rows * columns} tiles; the limit is {MAX_TILES}"
        raise LocalInferError(f"{describe(height, width)} {what}")


def describe(height: int, width: int) -> str:
    """Return the name of an image in messages."""
    return f"an image of {width} x {height} pixels"


def tile(pixels: Pixels, size: int, row: int, column: int) -> Pixels:
    """Return a square tile, whose row and column count from 0."""
    return pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]


def to_patches(pixels: Pixels, parameters: ImageParameters, name: str, *, bfloat16: bool = False) -> EncoderInput:
    """Return the patches of an image whose sides are multiples of the patch size."""
    size = parameters.patch_size
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    values = normalized_values(parameters, bfloat16=bfloat16)
    patches = np.empty((rows, columns, 3, size, size), np.float32)
    for channel in range(3):
        plane = values[channel][pixels[: rows * size, : columns * size, channel]]
        patches[:, :, channel] = plane.reshape(rows, size, columns, size).transpose(0, 2, 1, 3)
    return EncoderInput(patches.reshape(rows * columns, 3 * size * size), (rows, columns), name)


def normalized_values(parameters: ImageParameters, *, bfloat16: bool = False) -> NDArray[np.float32]:
    """Return what the values 0 to 255 of each channel become, float32 (3, 256): from 0 to 1, normalized.

    `bfloat16` rounds after every step.
    """
    levels = (np.arange(256) * (1 / 255)).astype(np.float32)
    mean = np.array(parameters.mean, np.float32)[:, None]
    std = np.array(parameters.std, np.float32)[:, None]
    if bfloat16:
        levels, mean, std = map(round_to_bfloat16, (levels, mean, std))
        return round_to_bfloat16(round_to_bfloat16(levels - mean) / std)
    return (levels - mean) / std


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the nearest values whose float32 has 16 zero bits at its end, of two equally near the even one."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def round_up(length: int, multiple: int) -> int:
    """Return the smallest multiple that is not less than a length."""
    return math.ceil(length / multiple) * multiple
