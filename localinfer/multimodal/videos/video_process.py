"""Videos are decoded in a child process, because the decoders are native code that reads untrusted files.

The child tells what the video is, receives the numbers of the frames to decode, and sends one frame after the other.
Its memory and its time are limited, and a crash ends only the child.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from localinfer.child_process import (
    Child,
    limit_resources,
    limit_time,
    limited_memory,
    read_frame,
    start_child,
    terminate,
    write_frame,
)
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.multimodal.media import Video
from localinfer.multimodal.videos.video_info import VideoInfo

CODE = "from localinfer.multimodal.videos.video_process import main; main()"
PACKAGES = ("localinfer", "numpy", "av")
MAX_MEMORY = 3 << 30  # bytes of address space in addition to the file; decoders of 4K need a third of it
MAX_SECONDS = 600.0  # of CPU time
INFO, FRAME, PROBLEM = b"I", b"F", b"P"
NUMBERS = np.dtype("<i4")

Pixels = NDArray[np.uint8]
Choose = Callable[[VideoInfo], Sequence[int]]  # the numbers of the frames to decode
Fit = Callable[[Pixels, int], Pixels]  # resizes one of so many frames
OnFrame = Callable[[int, int], None]  # the number of frames that are decoded, and of all


def is_decoder_installed() -> bool:
    """Return whether the package that decodes videos is installed."""
    return find_spec("av") is not None


def decode_in_child(
    data: bytes, container: str, name: str, choose: Choose, fit: Fit, on_frame: OnFrame | None = None
) -> Video:
    """Return the chosen frames of a video, each resized by `fit`, which makes all of them equal in size.

    `container` is FFmpeg's name of the container format. Raises LocalInferError naming `name`, and UnsupportedError if
    the package that decodes videos is not installed.
    """
    if not is_decoder_installed():
        raise UnsupportedError(f"{printable(name)}: videos need the extra `video`: pip install 'localinfer[video]'")
    try:
        child = start_child(CODE, PACKAGES)
    except OSError as error:
        raise LocalInferError(f"{printable(name)}: cannot start a process to decode it: {error.strerror}") from None
    try:
        with limited_memory(child, MAX_MEMORY + len(data)):
            request = data, container.encode(), name.encode("utf-8", "surrogatepass")
            return exchange(child, request, choose, fit, on_frame)
    except (EOFError, OSError):
        raise LocalInferError(f"{printable(name)}: the video is damaged: its decoder fails") from None
    finally:
        terminate(child)


def exchange(child: Child, request: Sequence[bytes], choose: Choose, fit: Fit, on_frame: OnFrame | None) -> Video:
    """Send a request to the child, and return the video of its answers. Raises EOFError and OSError if it fails."""
    assert child.stdin is not None
    assert child.stdout is not None
    for part in request:
        write_frame(child.stdin, part)
    info = VideoInfo.from_bytes(answer(child, INFO))
    numbers = list(choose(info))
    write_frame(child.stdin, np.array(numbers, NUMBERS).tobytes())
    frames: list[Pixels] = []
    for done in range(len(numbers)):
        pixels = np.frombuffer(answer(child, FRAME), np.uint8)
        frames.append(fit(pixels.reshape(info.height, info.width, 3), len(numbers)))
        if on_frame:
            on_frame(done + 1, len(numbers))
    return Video(np.stack(frames), tuple(number / info.fps for number in numbers), info.duration)


def answer(child: Child, kind: bytes) -> bytes:
    """Return an answer of the child. Raises LocalInferError for a problem that it reports."""
    assert child.stdout is not None
    content = read_frame(child.stdout)
    if content[:1] == PROBLEM:
        raise LocalInferError(content[1:].decode("utf-8", "replace"))
    if content[:1] != kind:
        raise EOFError
    return content[1:]


def main() -> None:
    """Decode one video in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    pipe = sys.stdin.buffer
    data, container = read_frame(pipe), read_frame(pipe).decode()
    name = read_frame(pipe).decode("utf-8", "surrogatepass")
    limit_resources(MAX_MEMORY + len(data))
    limit_time(MAX_SECONDS)
    try:
        from localinfer.multimodal.videos.video_decoding import VideoReader

        reader = VideoReader(data, container, name)
        write_frame(sys.stdout.buffer, INFO, reader.info.to_bytes())
        for frame in reader.frames(np.frombuffer(read_frame(pipe), NUMBERS).tolist()):
            write_frame(sys.stdout.buffer, FRAME, frame.tobytes())
    except LocalInferError as error:
        write_frame(sys.stdout.buffer, PROBLEM, str(error).encode("utf-8", "replace"))
