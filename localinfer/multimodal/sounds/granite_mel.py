"""The log-mel spectrogram of Granite Speech: that of Whisper, but on HTK's mel scale, without silence behind the sound,
and with two frames side by side: 50 rows per second.

Equal to GraniteSpeechFeatureExtractor of transformers.
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.mel import limit_range, log_of_power
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import STEP, LogEnergies, hann, htk_filters, log_energies

WINDOW, N_FFT = 400, 512  # samples
STACK = 2  # frames side by side
MIN_SAMPLES = N_FFT  # silence follows shorter sounds: their ends are mirrored


class GraniteProcessor:
    """Makes spectrograms whose rows have this number of values: twice as many as there are bands."""

    def __init__(self, n_values: int, energies: LogEnergies = log_energies) -> None:
        self._n_bands, self._energies = n_values // STACK, energies

    def n_frames(self, n_samples: int) -> int:
        """Return the number of rows."""
        return (max(n_samples, MIN_SAMPLES) // STEP + 1) // STACK

    def __call__(self, sound: Sound) -> Spectrogram:
        features = stacked_mel(sound.samples, self._n_bands, self._energies)
        return Spectrogram(features, len(features))


def stacked_mel(
    samples: NDArray[np.float32], n_bands: int, energies: LogEnergies = log_energies
) -> NDArray[np.float32]:
    """Return the spectrogram (rows, 2 * bands). An odd last frame is left out, but is one of those that set the
    range."""
    samples = np.pad(samples, (0, max(0, MIN_SAMPLES - len(samples))))
    padded = np.pad(samples, N_FFT // 2, mode="reflect")
    result: NDArray[np.float32] = energies(
        padded, hann(WINDOW, N_FFT), htk_filters(n_bands, N_FFT), len(samples) // STEP + 1, log_of_power
    )  # fmt: skip
    limit_range(result)
    return result[: len(result) // STACK * STACK].reshape(-1, STACK * n_bands)
