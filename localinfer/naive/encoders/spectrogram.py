"""The spectrogram of a sound by its definition: the discrete Fourier transform as a sum, without a fast algorithm.

A frame is some milliseconds of the sound, faded at its ends. How much of a frequency it contains is the length of its
sum with a cosine and a sine of that frequency. Filters collect the frequencies of a band.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localinfer.naive.formulas import Floats

Doubles = NDArray[np.float64]
STEP = 160  # samples from frame to frame: 10 ms


def log_energies(
    padded: Floats, taper: Doubles, filters: Doubles, count: int, log: Callable[[Doubles], Doubles], *,
    magnitudes: bool = False,
) -> Doubles:  # fmt: skip
    """Return the logarithm of the energy in each band, (frames, bands), of the first `count` frames, whose samples are
    multiplied by the `taper`. `filters` are (frequencies, bands). Instead of energies, `magnitudes` are their square
    roots at each frequency."""
    size = len(taper)
    turns = np.outer(np.arange(size), np.arange(size // 2 + 1)) % size / size  # of each sample at each frequency
    cosines, sines = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    frames = np.stack([padded[STEP * number : STEP * number + size] for number in range(count)]) * taper
    power = (frames @ cosines) ** 2 + (frames @ sines) ** 2
    return log((np.sqrt(power) if magnitudes else power) @ filters)
