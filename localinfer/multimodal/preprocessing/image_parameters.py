"""Parameters of image preprocessing, read from the `clip.vision.*` keys of a projector file."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import GGUF

PREFIX = "clip.vision."
MAX_IMAGE_SIZE = 8192  # as llama.cpp
MAX_PATCH_SIZE = 256
MAX_MERGE = 64
MAX_TILES = 64  # of one image; published models have 36 at most
MAX_PIXELS = 1 << 27  # of one image when it is resized, or of its patches

Filter = Literal["bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class ImageParameters:
    """Sizes are in pixels. 0 stands for a limit that the file does not have."""

    image_size: int  # of the square images, or tiles, that the encoder was trained with
    patch_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    merge: int = 1  # patches per side that become one token
    filter: Filter = "bicubic"
    min_pixels: int = 0
    max_pixels: int = 0
    longest_edge: int = 0
    min_tiles: int = 1
    max_tiles: int = 1
    resolutions: tuple[tuple[int, int], ...] = ()  # (width, height) of images that consist of tiles

    @property
    def token_size(self) -> int:
        """Pixels per side that become one token."""
        return self.patch_size * self.merge

    @property
    def mean_color(self) -> tuple[int, ...]:
        """The mean as a color. A file may have a mean that is none: the nearest color stands for it."""
        return tuple(min(max(int(value * 255), 0), 255) for value in self.mean)


def read_mean_and_std(f: GGUF) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return the mean and the standard deviation of each channel. Raises LocalInferError."""
    return _three_numbers(f, "image_mean"), _three_numbers(f, "image_std", positive=True)


def read_resolutions(f: GGUF) -> tuple[tuple[int, int], ...]:
    """Return the sizes (width, height) of `image_grid_pinpoints`, which lists them one behind the other."""
    key = PREFIX + "image_grid_pinpoints"
    values = f.get(key, np.ndarray, None)
    if values is None:
        return ()
    sizes = [int(value) for value in values]
    if values.dtype.kind not in "iu" or len(sizes) % 2 or not all(0 < size <= MAX_IMAGE_SIZE for size in sizes):
        raise f.error(key, "must be pairs of a width and a height")
    return tuple(zip(sizes[::2], sizes[1::2], strict=True))


def read_count(f: GGUF, name: str, default: int | None, *, minimum: int, maximum: int) -> int:
    """Return the integer `clip.vision.<name>` after checking its bounds. Without a default it must exist."""
    key = PREFIX + name
    value = f.get(key, int) if default is None else f.get(key, int, default)
    if not minimum <= value <= maximum:
        raise f.error(key, f"must be from {minimum} to {maximum}, not {value}")
    return value


def _three_numbers(f: GGUF, name: str, *, positive: bool = False) -> tuple[float, float, float]:
    """Return an array of one number per channel, which must be finite, and positive if it is a divisor."""
    values: NDArray[np.generic] = f.get(PREFIX + name, np.ndarray, signed=True)
    numbers = [float(value) for value in values[:4]] if values.dtype.kind in "fiu" else []
    if len(numbers) != 3 or not all(abs(value) < 1e4 and (value > 1e-4 or not positive) for value in numbers):
        raise f.error(PREFIX + name, f"must be three {'positive ' if positive else ''}numbers")
    red, green, blue = numbers
    return red, green, blue
