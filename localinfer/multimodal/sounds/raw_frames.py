"""The samples of a sound, for encoders that read them without a spectrogram: 40 ms at a time."""

import numpy as np

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import LogEnergies, log_energies

FRAME = 640  # samples


class RawFrames:
    """Divides sounds into frames. Silence completes the last one."""

    def __init__(self, n_bands: int, energies: LogEnergies = log_energies) -> None:
        """Files have a number of bands, which means nothing."""

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames: at least one."""
        return max(1, -(-n_samples // FRAME))

    def __call__(self, sound: Sound) -> Spectrogram:
        count = self.n_frames(len(sound.samples))
        frames = np.zeros((count, FRAME), np.float32)
        frames.reshape(-1)[: len(sound.samples)] = sound.samples
        return Spectrogram(frames, count)
