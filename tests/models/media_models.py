"""Reference models with images: the rows of their images, and the logits that transformers computes.

data/media/NAME.npz belongs to the reference model NAME; make_media_fixtures.py writes it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from media_rows import enclosed, grid, lines
from numpy.typing import NDArray

from localinfer.runtime.media.media_embeddings import MediaEmbeddings

DATA = Path(__file__).parents[1] / "data" / "media"
VIDEO_MODEL = "qwen2vl"  # the reference model of `expected_with_video`
BIDIRECTIONAL = ["gemma3-vision", "gemma4-dense"]  # rows of an image attend to later ones
NAMES = sorted(path.stem for path in DATA.glob("*.npz"))


@dataclass(frozen=True, eq=False)
class MediaReference:
    """A text with images. In `ids`, -1 - k is row k of all `images`. `logits` are those at `positions`."""

    ids: list[int]
    images: list[MediaEmbeddings]
    positions: NDArray[np.intp]
    logits: NDArray[np.float32]


def expected_with_video() -> MediaReference:
    """Return what transformers computed for a video in a text, whose temporal positions are times."""
    with np.load(DATA.parent / "video_logits.npz") as file:
        ids, coordinates = file["ids"].astype(int), file["coordinates"]
        ids[ids < 0] = -1 - np.arange((ids < 0).sum())
        video = MediaEmbeddings(b"video", file["rows"], int(coordinates.max()) + 1, coordinates)
        return MediaReference(ids.tolist(), [video], file["positions"], file["logits"])


def expected(name: str) -> MediaReference:
    """Return what transformers computed for a model."""
    with np.load(DATA / f"{name}.npz") as file:
        ids, rows, images = file["ids"].astype(int), file["rows"], list[MediaEmbeddings]()
        for height, width in file["grids"].tolist():
            count, fields = height * width, dict[str, Any](n_positions=max(height, width))
            fields |= {"coordinates": grid(height, width)}
            if name.startswith("hunyuan"):
                count = height * (width + 1) + 2
                fields = {"n_positions": count, "coordinates": lines(height, width)}
            if name.startswith("cogvlm"):
                count, fields = height * width + 2, {"n_positions": 3, "coordinates": enclosed(height * width)}
            if name.startswith("gemma"):
                fields = {"n_positions": count, "bidirectional": name in BIDIRECTIONAL}
            images.append(MediaEmbeddings(f"{name} {len(images)}".encode(), rows[:count], **fields))
            rows = rows[count:]
        ids[ids < 0] = -1 - np.arange((ids < 0).sum())
        return MediaReference(ids.tolist(), images, file["positions"], file["logits"])
