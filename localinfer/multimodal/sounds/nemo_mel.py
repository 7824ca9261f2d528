"""The log-mel spectrogram of NeMo's speech models (NVIDIA, 2019): 25 ms windows of the sound's differences, 100 of them
per second, each band with mean 0 and deviation 1 over the whole sound.

Equal to ParakeetFeatureExtractor of transformers. Its last frame, of which half is not sound, is zeros.
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import STEP, Doubles, LogEnergies, hann, log_energies, slaney_filters

WINDOW, N_FFT = 400, 512  # samples
PREEMPHASIS = 0.97
GUARD, EPSILON = 2.0**-24, 1e-5  # added to the power, and to the deviation
MIN_SAMPLES = 9 * STEP  # a deviation needs several frames; silence follows shorter sounds


class NemoProcessor:
    """Makes spectrograms with this number of bands."""

    def __init__(self, n_bands: int, energies: LogEnergies = log_energies) -> None:
        self._n_bands, self._energies = n_bands, energies

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames: the last one is zeros."""
        return max(n_samples, MIN_SAMPLES) // STEP + 1

    def __call__(self, sound: Sound) -> Spectrogram:
        features = normalized_mel(sound.samples, self._n_bands, self._energies)
        return Spectrogram(features, len(features))


def normalized_mel(
    samples: NDArray[np.float32], n_bands: int, energies: LogEnergies = log_energies
) -> NDArray[np.float32]:
    """Return the spectrogram (frames, bands)."""
    samples = np.pad(samples, (0, max(0, MIN_SAMPLES - len(samples))))
    differences = np.concatenate([samples[:1], samples[1:] - np.float32(PREEMPHASIS) * samples[:-1]])
    padded, count = np.pad(differences, N_FFT // 2), len(samples) // STEP
    filters = slaney_filters(n_bands, N_FFT)
    taper = hann(WINDOW, N_FFT, periodic=False)
    result: NDArray[np.float32] = energies(padded, taper, filters, count + 1, log_of_power)
    sound = result[:count]
    mean = sound.mean(0, dtype=np.float64)
    deviation = np.sqrt(np.square(sound - mean).sum(0) / (count - 1))
    sound[:] = (sound - mean) / (deviation + EPSILON)
    result[count:] = 0
    return result


def log_of_power(power: Doubles) -> Doubles:
    """Return the natural logarithm of a power that is a little more."""
    logarithm: Doubles = np.log(power + GUARD)
    return logarithm
