"""Small videos whose processing by transformers is in data/videos: `make_video_fixtures.py` writes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from made_images import photograph
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data" / "videos"
NAMES = sorted(path.stem for path in DATA.glob("*.npz"))


class Sampled(NamedTuple):
    """A video of which frames are sampled at `fps`, at most `most`."""

    n_frames: int
    source_fps: float
    fps: float
    most: int


class Encoded(NamedTuple):
    """A video of `n_frames`, of which those with these `numbers` are encoded; (frames, height, width) of the frames,
    and the limits of their pixels by which they keep this size."""

    shape: tuple[int, int, int]
    limits: dict[str, int]
    numbers: Sequence[int]
    n_frames: int = 100
    source_fps: float = 30.0


SAMPLED = (
    Sampled(300, 30.0, 2.0, 768), Sampled(301, 29.97, 2.0, 768), Sampled(90, 24.0, 1.0, 768),
    Sampled(7, 10.0, 2.0, 768), Sampled(4000, 25.0, 2.0, 64), Sampled(1000, 60.0, 0.5, 20),
    Sampled(24_000, 24.0, 1.0, 64), Sampled(50, 5.0, 4.0, 9),
)  # fmt: skip
WITHOUT_MOST = ("glm4v", "internvl")  # families whose processors have no largest number of frames
SIZES = ((4, 480, 640), (16, 720, 1280), (2, 40, 60), (300, 360, 200), (8, 1080, 1920))  # frames, height, width
RESIZED = {"glm5v": (3, 20, 30)}  # frames, height, width: this one becomes larger
LARGE = ("qwen2_5vl",)  # of which resized frames would be large
LIMITS = {"image_min_tokens": 2, "image_max_tokens": 60}  # options for frames of the encoded video


def sampled_by(name: str) -> list[Sampled]:
    """Return the videos of SAMPLED that a family's processor can sample."""
    return [each for each in SAMPLED if name not in WITHOUT_MOST or each.most == 768]


def resized(name: str) -> NDArray[np.uint8]:
    """Return the frames whose pixels a family resizes."""
    return frames(*RESIZED.get(name, (3, 50, 70)))


def encoded(name: str) -> Encoded:
    """Return the video that the encoder of a family encodes."""
    if name in ("idefics3", "internvl"):
        side = 60 if name == "idefics3" else 24
        return Encoded((3, side, side), {}, (0, 40, 99))
    if name == "glm5v":
        return Encoded((3, 16, 32), {}, (0, 40, 80))
    token = 28 if name == "qwen2_5vl" else 8
    shape = 5, 2 * token, 3 * token
    pixels = shape[1] * shape[2] * (1 if name.startswith("qwen2") else 6)
    return Encoded(shape, {"shortest_edge": pixels // 2, "longest_edge": 2 * pixels}, (0, 20, 40, 60, 80))


def frames(n: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return frames (n, height, width, 3) that differ."""
    random = np.random.default_rng(3)
    return np.stack([photograph(height, width, random) for _ in range(n)])
