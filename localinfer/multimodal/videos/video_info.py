"""What a file says about its video, before frames are decoded."""

from struct import Struct
from typing import NamedTuple, Self

BYTES = Struct("<qdqq")


class VideoInfo(NamedTuple):
    """The number of frames of a video, their rate per second, and their size in pixels, upright."""

    n_frames: int
    fps: float
    height: int
    width: int

    @property
    def duration(self) -> float:
        """The duration in seconds."""
        return self.n_frames / self.fps

    def to_bytes(self) -> bytes:
        """Return the values for another process."""
        return BYTES.pack(*self)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the values that `to_bytes` returned. Raises EOFError for other bytes."""
        if len(content) != BYTES.size:
            raise EOFError
        return cls(*BYTES.unpack(content))
