"""Decoded images, sounds and videos, identified by their content."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16
SAMPLE_RATE = 16_000  # samples per second of a `Sound`


@dataclass(frozen=True, eq=False)
class Image:
    """An image: `pixels` are uint8 (height, width, 3), red, green and blue, upright."""

    pixels: NDArray[np.uint8]

    @cached_property
    def digest(self) -> bytes:
        """The digest of the size and the pixels."""
        return digest_of(self.pixels)


@dataclass(frozen=True, eq=False)
class Sound:
    """A sound: `samples` are float32 (n,) from -1 to 1, one channel, SAMPLE_RATE per second."""

    samples: NDArray[np.float32]

    @cached_property
    def digest(self) -> bytes:
        """The digest of the samples."""
        return digest_of(self.samples)


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of a video: `frames` are uint8 (n, height, width, 3), upright, `times` the time of each in seconds, and
    `duration` that of the whole video."""

    frames: NDArray[np.uint8]
    times: tuple[float, ...]
    duration: float

    @cached_property
    def digest(self) -> bytes:
        """The digest of the frames and of their times."""
        times = digest_of(np.array([*self.times, self.duration]))
        return digest_of(np.frombuffer(digest_of(self.frames) + times, np.uint8))


def digest_of(array: NDArray[np.generic]) -> bytes:
    """Return a digest of the shape, the type and the values of an array."""
    header = f"{array.dtype.str} {array.shape} ".encode()
    return blake2b(header + np.ascontiguousarray(array).tobytes(), digest_size=DIGEST_BYTES).digest()
