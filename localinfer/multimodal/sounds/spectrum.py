"""The energy of a sound over time in the bands of a mel scale."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from localinfer.multimodal.media import SAMPLE_RATE

STEP = 160  # samples from frame to frame
BLOCK = 1000  # frames that are transformed at once
LINEAR_HZ, LINEAR_MEL, LOG_STEP = 1000.0, 15.0, float(np.log(6.4)) / 27  # Slaney's scale is linear up to 1 kHz
HTK_HZ, HTK_STEP = 700.0, 2595.0

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


class LogEnergies(Protocol):
    """A function that computes what `log_energies` does, perhaps in another precision."""

    def __call__(
        self, padded: NDArray[np.floating[Any]], taper: Doubles, filters: Doubles, count: int,
        log: Callable[[Doubles], Doubles], *, magnitudes: bool = False,
    ) -> Any:  # fmt: skip
        """Return the logarithm of the energy in each band, (frames, bands)."""


def log_energies(
    padded: NDArray[np.floating[Any]], taper: Doubles, filters: Doubles, count: int,
    log: Callable[[Doubles], Doubles], *, magnitudes: bool = False,
) -> Floats:  # fmt: skip
    """Return the logarithm of the energy in each band, (frames, bands), of the first `count` frames: each has as many
    samples as the `taper` that they are multiplied by. `filters` are (frequencies, bands). Instead of energies,
    `magnitudes` are their square roots at each frequency."""
    frames = sliding_window_view(padded, len(taper))[::STEP][:count]
    result = np.empty((count, filters.shape[1]), np.float32)
    for first in range(0, count, BLOCK):
        spectrum = np.fft.rfft(frames[first : first + BLOCK] * taper)
        power = np.abs(spectrum) if magnitudes else spectrum.real**2 + spectrum.imag**2
        result[first : first + BLOCK] = log(power @ filters)
    return result


def hann(size: int, n_fft: int, *, periodic: bool = True) -> Doubles:
    """Return Hann's window of this size in the middle of `n_fft` values."""
    angles = 2 * np.pi * np.arange(size) / (size if periodic else size - 1)
    before = (n_fft - size) // 2
    return np.pad(0.5 - 0.5 * np.cos(angles), (before, n_fft - size - before))


@lru_cache(4)
def slaney_filters(n_bands: int, n_fft: int) -> Doubles:
    """Return triangular filters of equal area on Slaney's mel scale from 0 to 8 kHz, (frequencies, bands)."""
    mel = LINEAR_MEL + float(np.log(SAMPLE_RATE / 2 / LINEAR_HZ)) / LOG_STEP
    points = np.linspace(0.0, mel, n_bands + 2)
    logarithmic = LINEAR_HZ * np.exp(LOG_STEP * (points - LINEAR_MEL))
    edges = np.where(points < LINEAR_MEL, points * (LINEAR_HZ / LINEAR_MEL), logarithmic)
    filters: Doubles = triangles(edges, n_fft) * 2 / (edges[2:] - edges[:-2])
    return filters


@lru_cache(4)
def htk_filters(n_bands: int, n_fft: int, lowest: float = 0.0, highest: float = SAMPLE_RATE / 2) -> Doubles:
    """Return triangular filters of equal height on HTK's mel scale between two frequencies in Hz, (frequencies,
    bands)."""
    low, high = (HTK_STEP * float(np.log10(1 + frequency / HTK_HZ)) for frequency in (lowest, highest))
    return triangles(HTK_HZ * (10 ** (np.linspace(low, high, n_bands + 2) / HTK_STEP) - 1), n_fft)


def triangles(edges: Doubles, n_fft: int) -> Doubles:
    """Return filters that rise from one edge to the next and fall to the one after it, (frequencies, bands)."""
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, n_fft // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    filters: Doubles = np.maximum(0, np.minimum(rising, falling))
    return filters
