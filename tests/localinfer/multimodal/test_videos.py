"""Videos become the frames, pixels, rows, texts and positions that transformers makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import projectors
import pytest
import video_cases

from localinfer.gguf.reader import open_gguf
from localinfer.multimodal.encoders import find_encoder
from localinfer.multimodal.media import Video
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.projector import Projector
from localinfer.multimodal.projector_file import open_projector
from localinfer.multimodal.videos.video_family import VideoFamily
from localinfer.multimodal.videos.video_info import VideoInfo
from localinfer.multimodal.videos.video_text import number_in_words
from localinfer.options import Options

TOLERANCE = 1e-4  # of the largest value
NAMES = video_cases.NAMES


def expected(name: str) -> dict[str, Any]:
    with np.load(video_cases.DATA / f"{name}.npz") as found:
        return dict(found)


def family(name: str) -> VideoFamily:
    encoder = find_encoder(name)
    assert encoder is not None
    assert encoder.video is not None
    return encoder.video


def projector(name: str, folder: Path, **options: Any) -> Projector:
    model = open_gguf(projectors.language_model(projectors.reference(name), folder))
    return Projector(open_projector(projectors.write(name, folder), model), Options(threads=2, **options))


def encoded_video(name: str) -> Video:
    case = video_cases.encoded(name)
    times = tuple(number / case.source_fps for number in case.numbers)
    return Video(video_cases.frames(*case.shape), times, case.n_frames / case.source_fps)


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_sampled_as_by_transformers(name: str) -> None:
    found = expected(name)
    for number, case in enumerate(video_cases.sampled_by(name)):
        info = VideoInfo(case.n_frames, case.source_fps, 48, 64)
        assert family(name).sample(info, case.fps, case.most) == found[f"sampled_{number}"].tolist(), case


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_frames", [1, 2, 3, 5])
def test_the_shortest_videos_have_a_frame(name: str, n_frames: int) -> None:
    for most in (1, 2, 4, 768):
        frames = family(name).sample(VideoInfo(n_frames, 30.0, 48, 64), 2.0, most)
        assert frames
        assert frames == sorted(frames)
        assert frames[0] >= 0
        assert frames[-1] < n_frames


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    processor = projector(name, tmp_path).video_processor
    sizes = [processor.sizes(height, width, n)[-1] for n, height, width in video_cases.SIZES]
    assert np.array_equal(sizes, expected(name)["sizes"])


@pytest.mark.parametrize("name", NAMES)
def test_pixels_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """torchvision rounds some pixels to a neighbouring value, as it does for images."""
    processor = projector(name, tmp_path, **(video_cases.LIMITS if name in video_cases.LARGE else {})).video_processor
    frames = video_cases.resized(name)
    inputs = processor(Video(frames, (0.0, 1.0, 2.0), 3.0))
    levels = np.concatenate([each.patches for each in inputs])
    wanted = as_inputs(expected(name)["levels"], inputs[0].grid, processor.parameters, processor.family.frames)
    difference = np.abs(np.rint((levels * 0.5 + 0.5) * 255) - wanted)
    assert difference.max() <= 2
    assert (difference > 1).mean() < 0.001
    assert difference.mean() < 0.25


def as_inputs(levels: Any, grid: tuple[int, int], p: ImageParameters, frames: int) -> Any:
    """Return the patches of a processor of transformers in the order of encoder inputs, [frame][channel][y][x]."""
    rows, columns, size, merge = *grid, p.patch_size, 2
    if frames == 1:
        tiles = levels.reshape(-1, 3, rows, size, columns, size).transpose(0, 2, 4, 1, 3, 5)
        return tiles.reshape(-1, 3 * size * size).astype(float)
    split = levels.reshape(-1, rows // merge, columns // merge, merge, merge, 3, frames, size, size)
    return split.transpose(0, 1, 3, 2, 4, 6, 5, 7, 8).reshape(-1, frames * 3 * size * size).astype(float)


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_text_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    video, found = encoded_video(name), expected(name)
    opened = projector(name, tmp_path, **({} if name in ("idefics3", "internvl") else video_cases.LIMITS))
    parts = opened.encode(video)
    embeddings = [part for part in parts if not isinstance(part, str)]
    rows = np.concatenate([each.rows for each in embeddings])
    assert rows.shape == found["rows"].shape
    assert np.abs(rows - found["rows"]).max() <= TOLERANCE * np.abs(found["rows"]).max()
    assert "".join(part if isinstance(part, str) else "#" * len(part) for part in parts) == str(found["text"])
    assert opened.layout(video) == [part if isinstance(part, str) else len(part) for part in parts]
    if "positions" in found:
        assert len(embeddings) == 1
        assert np.array_equal(embeddings[0].coordinates, found["positions"])
        assert embeddings[0].n_positions == found["positions"].max() + 1


@pytest.mark.parametrize(
    ("n", "words"),
    [(0, "zero"), (7, "seven"), (19, "nineteen"), (20, "twenty"), (64, "sixty-four"), (100, "one hundred"),
     (118, "one hundred and eighteen"), (1000, "one thousand"), (1001, "one thousand and one"),
     (4096, "four thousand and ninety-six"), (2300, "two thousand, three hundred")],
)  # fmt: skip
def test_numbers_in_words(n: int, words: str) -> None:
    assert number_in_words(n) == words
