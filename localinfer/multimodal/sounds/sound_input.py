"""The spectrogram of a sound."""

from dataclasses import dataclass

from localinfer.multimodal.sounds.framing import Floats


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """The log-mel spectrogram of a sound, float32 (frames, bands), 100 frames per second.

    The first `n_frames` frames are sound. Those after it are silence, up to a multiple of 30 s.
    """

    features: Floats
    n_frames: int
