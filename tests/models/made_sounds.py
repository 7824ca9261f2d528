"""Sounds that are computed, 16 kHz."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

STRIDE = 50  # frames of a spectrogram from one that is compared to the next
RATE = 16_000
Samples = NDArray[np.float32]


def chirp(seconds: float = 3.3) -> Samples:
    """Return a tone that rises from 100 Hz to 7.5 kHz and becomes louder."""
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * (100 * t + (7400 / seconds) * t * t / 2)
    return (0.9 * t / seconds * np.sin(phase)).astype(np.float32)


def steps(seconds: float = 31.0) -> Samples:
    """Return tones of half a second with pauses, longer than 30 s."""
    t = np.arange(int(seconds * RATE)) / RATE
    number = (2 * t).astype(np.int64)
    tone = np.sin(2 * np.pi * (200 + 370 * (number % 19)) * t) * (number % 3 != 0)
    return (0.4 * tone).astype(np.float32)


SOUNDS: dict[str, Callable[[], Samples]] = {"chirp": chirp, "steps": steps}
