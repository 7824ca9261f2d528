"""How a spectrogram becomes rows: how many frames are encoded, which of them the convolutions see together, and how
many rows are left after the convolutions."""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

ALL_FRAMES = 1 << 20  # more than sounds have: the window of encoders that read whole recordings
CHUNK_FRAMES = 3000  # of the spectrogram of 30 s, for which Whisper's encoder has positions
TAPS = 3  # the width of convolutions over time

Floats = NDArray[np.float32]


class Framing(NamedTuple):
    """What an encoder makes of the frames of a sound.

    The number of frames is at least `least`, and rounded up to a multiple of `unit`: silence follows the sound. The
    encoder reads at most
    `window` frames at once. If `chunk` is not 0, convolutions see chunks of that many frames, as if nothing were before
    and after them. Each of the `halvings` is a convolution of stride 2. `rate` is the number of frames of a second.
    """

    unit: int = 1
    window: int = CHUNK_FRAMES
    chunk: int = 0
    halvings: int = 1
    rate: int = 100
    least: int = 1

    def frames(self, n_frames: int) -> int:
        """Return the number of frames that are encoded for this many frames of sound."""
        return -(-max(n_frames, self.least) // self.unit) * self.unit

    def windows(self, n_frames: int) -> list[tuple[int, int]]:
        """Return the first frame of what the encoder reads at once, and the number of frames, for a sound."""
        total = self.frames(n_frames)
        return [(first, min(self.window, total - first)) for first in range(0, total, self.window)]

    def lengths(self, n_frames: int) -> list[int]:
        """Return the number of frames of each part that convolutions see together."""
        size = self.chunk or n_frames
        return [min(size, n_frames - first) for first in range(0, n_frames, size)]

    def positions(self, length: int) -> int:
        """Return the number of rows that the convolutions make of a part with this many frames."""
        for _ in range(self.halvings):
            length = -(-length // 2)
        return length


def neighbours(features: Floats, lengths: list[int]) -> Floats:
    """Return each frame with the frames before and after it, float32 (frames, bands * 3) in the order [band][time].

    `features` are (frames, bands). Zeros precede and follow each of the parts with these `lengths`.
    """
    ends = np.cumsum(lengths)
    return np.concatenate(
        [with_neighbours(features[end - size : end], size) for end, size in zip(ends, lengths, strict=True)]
    )


def neighbours_with_silence(features: Floats, lengths: list[int]) -> Floats:
    """Return what `neighbours` returns for a single part, which is followed by further frames of `features`."""
    return with_neighbours(features, lengths[0])


def with_neighbours(features: Floats, length: int) -> Floats:
    """Return each of the first `length` frames with the frames before and after it; those that are missing are 0."""
    padded = np.zeros((length + TAPS - 1, features.shape[1]), np.float32)
    found = features[: length + 1]
    padded[1 : 1 + len(found)] = found
    return sliding_window_view(padded, TAPS, 0).reshape(length, -1)


def strided_neighbours(lengths: list[int]) -> NDArray[np.int32]:
    """Return the rows that each output row of a convolution of width 3 and stride 2 reads, (output rows, 3), for parts
    with these numbers of rows. The row behind the last one stands for the zeros before and after a part."""
    tables, first, zero = [], 0, sum(lengths)
    for length in lengths:
        taps = 2 * np.arange(-(-length // 2))[:, None] + np.arange(-1, TAPS - 1)
        tables.append(np.where((taps >= 0) & (taps < length), first + taps, zero))
        first += length
    return np.concatenate(tables).astype(np.int32)
