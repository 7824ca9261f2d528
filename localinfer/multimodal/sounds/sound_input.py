"""The spectrogram of a sound, and what makes it."""

from dataclasses import dataclass
from typing import Protocol

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.framing import Floats


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """The log-mel spectrogram of a sound, float32 (frames, bands), usually 100 frames per second.

    The first `n_frames` frames are sound. Those after it are silence.
    """

    features: Floats
    n_frames: int


class SoundProcessor(Protocol):
    """Makes the spectrogram of a sound."""

    def __call__(self, sound: Sound) -> Spectrogram:
        """Return the log-mel spectrogram of a sound."""

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames of the spectrogram of a sound that are sound."""
