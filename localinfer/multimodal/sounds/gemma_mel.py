"""The log-mel spectrogram of Gemma 4: windows of 20 ms, 100 of them per second, magnitudes instead of energies.

Equal to Gemma4AudioFeatureExtractor of transformers, for sounds of any length.
"""

import numpy as np

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import STEP, Doubles, hann, htk_filters, log_energies

WINDOW, N_FFT = 320, 512  # samples
BEFORE = WINDOW // 2 + (N_FFT - WINDOW) // 2  # silence before the sound; the window is in the middle of N_FFT samples
FLOOR = 1e-3


class Gemma4Processor:
    """Makes spectrograms with this number of bands."""

    def __init__(self, n_bands: int) -> None:
        self._n_bands = n_bands

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
        features = log_energies(padded, hann(WINDOW, N_FFT), filters, count, log_with_floor, magnitudes=True)
        return Spectrogram(features, count)


def log_with_floor(values: Doubles) -> Doubles:
    """Return the natural logarithm of values to which FLOOR is added."""
    logarithm: Doubles = np.log(values + FLOOR)
    return logarithm
