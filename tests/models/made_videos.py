"""Small videos, encoded by PyAV: a square that moves over two areas, of which one becomes brighter."""

from fractions import Fraction
from io import BytesIO
from struct import pack

import av
import numpy as np
from numpy.typing import NDArray

CODECS = (  # FFmpeg's name of the container format, the codec and the pixel format
    ("mp4", "libx264", "yuv420p"), ("mp4", "mpeg4", "yuv420p"), ("mov", "mjpeg", "yuvj420p"),
    ("webm", "libvpx", "yuv420p"), ("webm", "libvpx-vp9", "yuv420p"), ("matroska", "ffv1", "yuv444p"),
    ("avi", "mpeg4", "yuv420p"), ("matroska", "rawvideo", "yuv420p"), ("gif", "gif", "rgb8"),
    ("flv", "flv1", "yuv420p"),
    ("mpegts", "mpeg2video", "yuv420p"), ("mpeg", "mpeg2video", "yuv420p"),
)  # fmt: skip
UPRIGHT = (1, 0, 0, 1)
TURNED = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}  # degrees clockwise -> matrix


def drawn_frame(number: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return the pixels of a frame."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :, 0] = min(255, 10 * number)
    pixels[: height // 2, :, 1] = 200
    pixels[height // 8 : height // 4, 3 * number : 3 * number + 12] = 255
    return pixels


def make_video(
    n_frames: int = 24, rate: Fraction | int = 8, size: tuple[int, int] = (64, 96), container: str = "mp4",
    codec: str = "libx264", pixel_format: str = "yuv420p",
) -> bytes:  # fmt: skip
    """Return a video file; `size` is the height and the width."""
    stream_of_bytes = BytesIO()
    with av.open(stream_of_bytes, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = *size, pixel_format
        for number in range(n_frames):
            frame = av.VideoFrame.from_ndarray(drawn_frame(number, *size), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return stream_of_bytes.getvalue()


def turned(mp4: bytes, degrees: int) -> bytes:
    """Return an MP4 file whose track header says that players turn it clockwise."""

    def matrix(a: int, b: int, c: int, d: int) -> bytes:
        return pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)

    at = mp4.index(matrix(*UPRIGHT), mp4.index(b"tkhd"))
    return mp4[:at] + matrix(*TURNED[degrees]) + mp4[at + 36 :]
