"""Reference models with images: the rows of their images, and the logits that transformers computes.

data/media/NAME.npz belongs to the reference model NAME; make_media_fixtures.py writes it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from media_rows import grid
from numpy.typing import NDArray

from localinfer.runtime.media_embeddings import MediaEmbeddings

DATA = Path(__file__).parents[1] / "data" / "media"
BIDIRECTIONAL = ["gemma3-vision", "gemma4-dense"]  # rows of an image attend to later ones
NAMES = sorted(path.stem for path in DATA.glob("*.npz"))


@dataclass(frozen=True, eq=False)
class MediaReference:
    """A text with images. In `ids`, -1 - k is row k of all `images`. `logits` are those at `positions`."""

    ids: list[int]
    images: list[MediaEmbeddings]
    positions: NDArray[np.intp]
    logits: NDArray[np.float32]


def expected(name: str) -> MediaReference:
    """Return what transformers computed for a model."""
    with np.load(DATA / f"{name}.npz") as file:
        ids, rows, images = file["ids"].astype(int), file["rows"], list[MediaEmbeddings]()
        for height, width in file["grids"].tolist():
            count, fields = height * width, dict[str, Any](n_positions=max(height, width))
            fields |= {"coordinates": grid(height, width)}
            if name.startswith("gemma"):
                fields = {"n_positions": count, "bidirectional": name in BIDIRECTIONAL}
            images.append(MediaEmbeddings(f"{name} {len(images)}".encode(), rows[:count], **fields))
            rows = rows[count:]
        ids[ids < 0] = -1 - np.arange((ids < 0).sum())
        return MediaReference(ids.tolist(), images, file["positions"], file["logits"])
