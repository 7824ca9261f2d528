"""Vision encoders: one file for each projector type of llama.cpp's projector files.

A file is named after the type, with "." and "-" replaced by "_" and without "_merger". It has

    build(g)            computes the output rows with the operations of an `EncoderBuilder`
    arrange(views)      returns the rows of an image and of its tiles with text around them
    ARCHITECTURES       the language models that it belongs to (GGUF architectures); any if it is empty
    is_bidirectional(model)  whether the rows of an image attend to each other in this language model (no if missing)
    GRID_POSITIONS      whether rows have positions in two dimensions (M-RoPE; False if missing)
    coordinates(grid, n_rows)  returns the places of the rows in the image (XD-RoPE), (n_rows, 2), or their rotary
                        positions, (n_rows, 3); if missing, these are consecutive
    VIDEO               how videos are read (`VideoFamily`; None if missing: the encoder was not trained for them)
    HAS_PROJECTION_DIM  whether clip.vision.projection_dim is the length of the rows (True if missing)
    HAS_LAYERS          whether it has layers; if not, keys of the file say that there are none (True if missing)
    n_rows(f, grid, n)  the number of rows that the graph of a grid needs; `n` of patches and class rows if missing
    CLASS_ROWS          whether the file may have rows beside those of the patches (False if missing: it is refused)
    ANY_SIZE            whether clip.vision.image_size is unused: the image processor chooses a size (False if missing)
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoders.arrangement import Arrange
from localinfer.multimodal.videos.video_family import VideoFamily

HELPERS = ("arrangement",)


class Encoder(NamedTuple):
    """What the file of a projector type defines."""

    build: Callable[[EncoderBuilder], Buffer]
    arrange: Arrange
    architectures: tuple[str, ...]
    is_bidirectional: Callable[[GGUF], bool]
    grid_positions: bool
    has_projection_dim: bool
    has_layers: bool
    any_size: bool
    class_rows: bool
    n_rows: Callable[[GGUF, tuple[int, int], int], int]
    video: VideoFamily | None = None
    coordinates: Callable[[tuple[int, int], int], NDArray[np.int32]] | None = None


def causal(model: GGUF) -> bool:  # noqa: ARG001 of all models
    """Return that rows of an image attend to earlier ones only."""
    return False


def rows_of_patches(f: GGUF, grid: tuple[int, int], n: int) -> int:  # noqa: ARG001 (one signature for all)
    """Return n: the rows of patches and class rows are enough."""
    return n


def known() -> list[str]:
    """Return the names of all modules of projector types."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem not in HELPERS)


def find_encoder(projector_type: str) -> Encoder | None:
    """Return the encoder of a projector type, or None if there is none."""
    name = re.sub(r"[.-]", "_", projector_type.removesuffix("_merger"))
    if name not in known():
        return None
    module = import_module(f"localinfer.multimodal.encoders.{name}")
    return Encoder(
        module.build,
        module.arrange,
        module.ARCHITECTURES,
        getattr(module, "is_bidirectional", causal),
        getattr(module, "GRID_POSITIONS", False),
        getattr(module, "HAS_PROJECTION_DIM", True),
        getattr(module, "HAS_LAYERS", True),
        getattr(module, "ANY_SIZE", False),
        getattr(module, "CLASS_ROWS", False),
        getattr(module, "n_rows", rows_of_patches),
        getattr(module, "VIDEO", None),
        getattr(module, "coordinates", None),
    )
