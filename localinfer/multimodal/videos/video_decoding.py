"""Decoding of videos by PyAV (FFmpeg), one frame at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO

import av
import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.multimodal.videos.video_info import VideoInfo

MAX_SECONDS = 3600
MAX_THREADS = 4  # of a decoder; each may need memory for frames
MAX_FRAMES = 1 << 20  # in a file
MAX_PIXELS = 1 << 25  # of a frame; 8K has 33 million
MAX_ASPECT_RATIO = 200
RATES = (0.01, 1000.0)  # frames per second that are believed
DEFAULT_RATE = 24.0
Pixels = NDArray[np.uint8]


class VideoReader:
    """A video in memory; `info` describes it. Raises LocalInferError naming `name` for a damaged one, and for one
    that is too large."""

    def __init__(self, data: bytes, container: str, name: str) -> None:
        """`container` is FFmpeg's name of the container format. Only its demuxer runs, and none that opens other
        files."""
        self._data, self._container, self._name = data, container, printable(name)
        self._rotation, self._size = 0, (0, 0)  # width, height
        with self._named_errors():
            self.info = self._read_info()

    def frames(self, numbers: Sequence[int]) -> Iterator[Pixels]:
        """Yield frames, uint8 (height, width, 3), by their numbers, which increase or repeat. The last frame stands for
        those that a damaged file lacks."""
        with self._named_errors():
            decoded = self._decoded()
            number, frame = 0, next(decoded, None)
            for wanted in numbers:
                while number < wanted and (following := next(decoded, None)) is not None:
                    number, frame = number + 1, following
                if frame is None:
                    raise LocalInferError(f"{self._name}: the video has no frames")
                yield self._pixels(frame)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise what decoders of damaged files raise as LocalInferError."""
        try:
            yield
        except (LocalInferError, GeneratorExit):
            raise
        except MemoryError:
            raise LocalInferError(f"{self._name}: the video needs more memory than there is") from None
        except Exception as error:  # decoders of damaged files raise whatever they stumble over
            problem = printable(" ".join(str(getattr(error, "strerror", None) or error).split()), 160)
            raise LocalInferError(f"{self._name}: the video is damaged: {problem or type(error).__name__}") from None

    def _read_info(self) -> VideoInfo:
        with self._open() as container:
            stream = self._stream(container)
            n = 0
            for packet in container.demux(stream):
                n += packet.size > 0
                if n > MAX_FRAMES:
                    raise LocalInferError(f"{self._name}: the video has more than {MAX_FRAMES} frames")
            rate, duration, time_base = stream.average_rate or stream.guessed_rate, stream.duration, stream.time_base
        first = next(self._decoded(), None)
        if first is None or not n:
            raise LocalInferError(f"{self._name}: the video has no frames")
        self._rotation, self._size = round(first.rotation / 90) % 4, (first.width, first.height)
        info = VideoInfo(n, self._rate(rate, n, duration, time_base), *self._pixels(first).shape[:2])
        if info.duration > MAX_SECONDS:
            raise LocalInferError(f"{self._name}: the video is longer than {MAX_SECONDS // 60} minutes")
        return info

    @staticmethod
    def _rate(rate: Fraction | None, n: int, duration: int | None, time_base: Fraction | None) -> float:
        """Return the frames per second: what the file says, or else what follows from its duration."""
        least, most = RATES
        if rate and least <= rate <= most:
            return float(rate)
        seconds = float(duration * time_base) if duration and time_base else 0.0
        return n / seconds if seconds > 0 and least <= n / seconds <= most else DEFAULT_RATE

    def _open(self) -> "av.container.InputContainer":
        return av.open(
            BytesIO(self._data), "r", format=self._container, metadata_errors="replace",
            container_options={"protocol_whitelist": "", "format_whitelist": self._container},
        )  # fmt: skip

    def _stream(self, container: "av.container.InputContainer") -> "av.VideoStream":
        if not container.streams.video:
            raise LocalInferError(f"{self._name}: the file has no video")
        stream = container.streams.video[0]
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        stream.codec_context.thread_count = MAX_THREADS
        self._check_size(stream.codec_context.height, stream.codec_context.width)
        return stream

    def _decoded(self) -> "Iterator[av.VideoFrame]":
        with self._open() as container:
            yield from container.decode(self._stream(container))

    def _pixels(self, frame: "av.VideoFrame") -> Pixels:
        """Return the pixels of a frame, upright, in the size of the first one."""
        self._check_size(frame.height, frame.width)
        shown = frame.reformat(*self._size, format="rgb24")
        return np.ascontiguousarray(np.rot90(shown.to_ndarray(), self._rotation), np.uint8)

    def _check_size(self, height: int, width: int) -> None:
        size = f"{self._name}: a video of {width} x {height} pixels"
        if height < 1 or width < 1:
            raise LocalInferError(f"{size} has no pixels")
        if height * width > MAX_PIXELS or max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            limits = f"at most {MAX_PIXELS} pixels are read, and sides of 1:{MAX_ASPECT_RATIO}"
            raise LocalInferError(f"{size} is too large: {limits}")
