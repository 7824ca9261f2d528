"""The log-mel spectrograms of Gemma 4 and Gemma 3n: windows of 20 or 32 ms, 100 of them per second, magnitudes instead
of energies.

Equal to Gemma4AudioFeatureExtractor of transformers for sounds of any length, and to Gemma3nAudioFeatureExtractor for
sounds of up to 30 s.
"""

import numpy as np

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import STEP, Doubles, LogEnergies, hann, htk_filters, log_energies

WINDOW, N_FFT = 320, 512  # samples
BEFORE = WINDOW // 2 + (N_FFT - WINDOW) // 2  # silence before the sound; the window is in the middle of N_FFT samples
FLOOR = 1e-3
LONG_WINDOW, LONG_N_FFT = 512, 1024  # samples, of Gemma 3n
UNIT = 128  # silence completes this number of samples
LOWEST, HIGHEST = 125.0, 7600.0  # Hz
PREEMPHASIS = 0.97  # of the sample before each, which is subtracted
LEAST = 1e-5  # of magnitudes in a band


class Gemma4Processor:
    """Makes spectrograms with this number of bands."""

    def __init__(self, n_bands: int, energies: LogEnergies = log_energies) -> None:
        self._n_bands, self._energies = n_bands, energies

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames whose window, and one sample after it, are within the sound, or before it: at
        least one."""
        return max(1, (n_samples - WINDOW // 2 - 1) // STEP + 1)

    def __call__(self, sound: Sound) -> Spectrogram:
        count = self.n_frames(len(sound.samples))
        padded = np.zeros((count - 1) * STEP + N_FFT, np.float32)
        found = sound.samples[: len(padded) - BEFORE]
        padded[BEFORE : BEFORE + len(found)] = found
        filters = htk_filters(self._n_bands, N_FFT)
        features = self._energies(padded, hann(WINDOW, N_FFT), filters, count, log_with_floor, magnitudes=True)
        return Spectrogram(features, count)


def log_with_floor(values: Doubles) -> Doubles:
    """Return the natural logarithm of values to which FLOOR is added."""
    logarithm: Doubles = np.log(values + FLOOR)
    return logarithm


class Gemma3nProcessor:
    """Makes spectrograms with this number of bands of sounds whose high frequencies are emphasized in each window."""

    def __init__(self, n_bands: int, energies: LogEnergies = log_energies) -> None:
        self._n_bands, self._energies = n_bands, energies

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames whose window, and one sample after it, are within the completed sound: at least
        one."""
        return max(1, (-(-n_samples // UNIT) * UNIT - LONG_WINDOW - 1) // STEP + 1)

    def __call__(self, sound: Sound) -> Spectrogram:
        count, before = self.n_frames(len(sound.samples)), (LONG_N_FFT - LONG_WINDOW) // 2
        padded = np.zeros((count - 1) * STEP + LONG_N_FFT)
        found = sound.samples[: len(padded) - before]
        padded[before : before + len(found)] = found
        padded[1:] -= PREEMPHASIS * padded[:-1]  # the taper of the first sample of a window is 0
        filters = htk_filters(self._n_bands, LONG_N_FFT, LOWEST, HIGHEST)
        taper = hann(LONG_WINDOW, LONG_N_FFT)
        return Spectrogram(self._energies(padded, taper, filters, count, log_of_magnitude, magnitudes=True), count)


def log_of_magnitude(values: Doubles) -> Doubles:
    """Return the natural logarithm, not less than that of LEAST."""
    logarithm: Doubles = np.log(np.maximum(values, LEAST))
    return logarithm
