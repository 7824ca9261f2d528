"""The log-mel spectrogram of Whisper (Radford et al., 2022): 25 ms windows, 100 of them per second.

Equal to WhisperFeatureExtractor of transformers, for sounds of any length: silence fills up the last 30 s, and the
loudest value of the whole sound sets the range.
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.framing import CHUNK_FRAMES
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import STEP, Doubles, LogEnergies, hann, log_energies, slaney_filters

WINDOW = 400  # samples
FLOOR, RANGE = 1e-10, 8.0  # of the power, and of its decimal logarithm


class MelProcessor:
    """Makes spectrograms with this number of bands."""

    def __init__(self, n_bands: int, energies: LogEnergies = log_energies) -> None:
        self._n_bands, self._energies = n_bands, energies

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames that are sound: at least one."""
        return max(1, n_samples // STEP)

    def __call__(self, sound: Sound) -> Spectrogram:
        return Spectrogram(log_mel(sound.samples, self._n_bands, self._energies), self.n_frames(len(sound.samples)))


def log_mel(
    samples: NDArray[np.float32], n_bands: int, energies: LogEnergies = log_energies
) -> NDArray[np.float32]:
    """Return the spectrogram (frames, bands), whose number of frames is a multiple of that of 30 s."""
    chunk = CHUNK_FRAMES * STEP
    n_samples = max(1, -(-len(samples) // chunk)) * chunk
    padded = np.pad(np.pad(samples, (0, n_samples - len(samples))), WINDOW // 2, mode="reflect")
    filters = slaney_filters(n_bands, WINDOW)
    result: NDArray[np.float32] = energies(padded, hann(WINDOW, WINDOW), filters, n_samples // STEP, log_of_power)
    limit_range(result)
    return result


def log_of_power(power: Doubles) -> Doubles:
    """Return the decimal logarithm, not less than that of FLOOR."""
    logarithm: Doubles = np.log10(np.maximum(power, FLOOR))
    return logarithm


def limit_range(result: NDArray[np.float32]) -> None:
    """Raise what is further than RANGE below the largest value, and bring all values to about -1 to 1."""
    np.maximum(result, result.max() - np.float32(RANGE), out=result)
    result += 4
    result /= 4
