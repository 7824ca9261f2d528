"""Random embeddings in place of what an encoder makes of images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.runtime.media.media_embeddings import MediaEmbeddings


def random_rows(name: str, count: int, width: int = 256, **fields: Any) -> MediaEmbeddings:
    """Return embeddings that the name determines; `fields` are others of `MediaEmbeddings`."""
    rows = np.random.default_rng(list(name.encode())).standard_normal((count, width), np.float32)
    return MediaEmbeddings(name.encode(), rows, **({"n_positions": count} | fields))


def grid(rows: int, columns: int) -> NDArray[np.int32]:
    """Return the coordinates of the rows of an image that is divided into a grid."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    return np.stack([np.zeros_like(y), y, x], axis=1).astype(np.int32)


def lines(rows: int, columns: int) -> NDArray[np.int32]:
    """Return the columns and rows of the rows of an image in lines that end with a row of their own, between two rows
    that have none."""
    y, x = np.divmod(np.arange(rows * (columns + 1)), columns + 1)
    return np.pad(np.stack([x, y], axis=1), ((1, 1), (0, 0)), constant_values=-1).astype(np.int32)


def enclosed(n_inner: int) -> NDArray[np.int32]:
    """Return the coordinates of the rows of an image of CogVLM: a first row, inner ones that share a position, and a
    last row."""
    return np.repeat(np.array([0, *[1] * n_inner, 2], np.int32)[:, None], 3, axis=1)
