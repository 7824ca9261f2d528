"""The log-mel spectrogram of Whisper (Radford et al., 2022): 25 ms windows, 100 of them per second.

Equal to WhisperFeatureExtractor of transformers, for sounds of any length: silence fills up the last 30 s, and the
loudest value of the whole sound sets the range.
"""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from localinfer.multimodal.media import SAMPLE_RATE, Sound
from localinfer.multimodal.sounds.framing import CHUNK_FRAMES
from localinfer.multimodal.sounds.sound_input import Spectrogram

WINDOW, STEP = 400, 160  # samples
BLOCK = 1000  # frames that are transformed at once
FLOOR, RANGE = 1e-10, 8.0  # of the power, and of its decimal logarithm
LINEAR_HZ, LINEAR_MEL, LOG_STEP = 1000.0, 15.0, float(np.log(6.4)) / 27  # Slaney's scale is linear up to 1 kHz

Doubles = NDArray[np.float64]


class MelProcessor:
    """Makes spectrograms with this number of bands."""

    def __init__(self, n_bands: int) -> None:
        self._n_bands = n_bands

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames that are sound: at least one."""
        return max(1, n_samples // STEP)

    def __call__(self, sound: Sound) -> Spectrogram:
        return Spectrogram(log_mel(sound.samples, self._n_bands), self.n_frames(len(sound.samples)))


def log_mel(samples: NDArray[np.float32], n_bands: int) -> NDArray[np.float32]:
    """Return the spectrogram (frames, bands), whose number of frames is a multiple of that of 30 s."""
    chunk = CHUNK_FRAMES * STEP
    n_samples = max(1, -(-len(samples) // chunk)) * chunk
    padded = np.pad(np.pad(samples, (0, n_samples - len(samples))), WINDOW // 2, mode="reflect")
    frames = sliding_window_view(padded, WINDOW)[:-1:STEP]
    taper, filters = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW), mel_filters(n_bands)
    result = np.empty((n_samples // STEP, n_bands), np.float32)
    for first in range(0, len(result), BLOCK):
        spectrum = np.fft.rfft(frames[first : first + BLOCK] * taper)
        power = (spectrum.real**2 + spectrum.imag**2) @ filters
        result[first : first + BLOCK] = np.log10(np.maximum(power, FLOOR))
    np.maximum(result, result.max() - np.float32(RANGE), out=result)
    result += 4
    result /= 4
    return result


@lru_cache(4)
def mel_filters(n_bands: int) -> Doubles:
    """Return triangular filters of equal area on Slaney's mel scale from 0 to 8 kHz, (frequencies, bands)."""
    highest = SAMPLE_RATE / 2
    edges = to_hertz(np.linspace(0.0, to_mel(highest), n_bands + 2))
    frequencies = np.linspace(0.0, highest, WINDOW // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    filters: Doubles = np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])
    return filters


def to_mel(hertz: float) -> float:
    """Return a frequency above 1 kHz on Slaney's mel scale."""
    return LINEAR_MEL + float(np.log(hertz / LINEAR_HZ)) / LOG_STEP


def to_hertz(mel: Doubles) -> Doubles:
    """Return frequencies of Slaney's mel scale in Hz."""
    logarithmic = LINEAR_HZ * np.exp(LOG_STEP * (mel - LINEAR_MEL))
    hertz: Doubles = np.where(mel < LINEAR_MEL, mel * (LINEAR_HZ / LINEAR_MEL), logarithmic)
    return hertz
