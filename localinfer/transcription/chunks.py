"""Cuts a sound into chunks that a model transcribes one by one, at the quietest place near the end of each."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.multimodal.media import SAMPLE_RATE

SEARCHED = 1 / 3  # the last part of a chunk, in which it may end
FRAME = SAMPLE_RATE // 50  # samples of 20 ms
QUIET_FRAMES = 10  # a cut is in the middle of 0.2 s
SILENCE = 1e-3  # the largest value of a chunk without speech: -60 dB


class Chunk(NamedTuple):
    """The samples from `start` to `end`."""

    start: int
    end: int


def cut(samples: NDArray[np.float32], max_seconds: float) -> list[Chunk]:
    """Divide a sound into consecutive chunks of at most `max_seconds`."""
    longest, start, chunks = int(max_seconds * SAMPLE_RATE), 0, []
    while len(samples) - start > longest:
        first = start + longest - int(longest * SEARCHED)
        end = first + quietest_place(samples[first : start + longest])
        chunks.append(Chunk(start, end))
        start = end
    return [*chunks, Chunk(start, len(samples))]


def quietest_place(samples: NDArray[np.float32]) -> int:
    """Return the number of the sample in the middle of the quietest 0.2 s; the last of equally quiet places."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    power = np.square(frames, dtype=np.float64).mean(1)
    width = min(QUIET_FRAMES, len(power))
    mean = np.convolve(power, np.ones(width), "valid")
    last = len(mean) - 1 - int(np.argmin(mean[::-1]))
    return last * FRAME + width * FRAME // 2


def is_silent(samples: NDArray[np.float32]) -> bool:
    """Return whether a chunk has no speech, of which models invent text."""
    return not len(samples) or float(np.abs(samples).max()) < SILENCE
