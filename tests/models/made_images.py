"""Images of many sizes, also extremely wide and tall: like photographs, like gradients and like text."""

import numpy as np
from numpy.typing import NDArray

SIZES = (  # width, height
    (1, 1), (2, 3), (7, 5), (13, 29), (28, 28), (31, 31), (32, 32), (55, 57),
    (64, 64), (100, 40), (40, 100), (112, 112), (127, 129), (150, 150), (200, 1), (1, 200),
    (600, 3), (3, 600), (500, 10), (10, 500), (224, 224), (225, 223), (240, 320), (320, 240),
    (336, 336), (337, 335), (364, 364), (365, 363), (300, 200), (200, 300), (400, 100), (100, 400),
    (448, 448), (449, 447), (512, 512), (513, 511), (640, 480), (480, 640), (640, 360), (360, 640),
    (700, 70), (70, 700), (728, 728), (800, 600), (600, 800), (900, 300), (300, 900), (1024, 768),
    (1280, 720), (720, 1280),
)  # fmt: skip


def made_image(number: int) -> NDArray[np.uint8]:
    """Return an image of the size with this number, uint8 (height, width, 3)."""
    width, height = SIZES[number]
    return (photograph, gradients, text)[number % 3](height, width, np.random.default_rng(number))


def photograph(height: int, width: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return noise of several scales, so that there are areas, edges and grain."""
    total = np.full((height, width, 3), 128)
    for scale in (64, 16, 4, 1):
        coarse = random.integers(-12 - scale, 13 + scale, size=(height // scale + 1, width // scale + 1, 3))
        total += coarse.repeat(scale, axis=0).repeat(scale, axis=1)[:height, :width]
    return np.clip(total, 0, 255).astype(np.uint8)


def gradients(height: int, width: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return waves of a different length and direction in each channel."""
    y, x = np.mgrid[:height, :width]
    phases = [x * random.integers(-20, 21) + y * random.integers(-20, 21) for _ in range(3)]
    return np.abs(np.stack(phases, axis=2) % 511 - 255).astype(np.uint8)


def text(height: int, width: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return black letters of random strokes on white, with sharp edges."""
    ink = random.integers(0, 5, size=(height // 10 + 1, width // 6 + 1, 7, 4)) < 2
    letters = np.pad(ink, ((0, 0), (0, 0), (1, 2), (1, 1)))
    page = letters.transpose(0, 2, 1, 3).reshape(letters.shape[0] * 10, letters.shape[1] * 6)[:height, :width]
    return np.repeat(np.where(page, 20, 250)[:, :, None], 3, axis=2).astype(np.uint8)
