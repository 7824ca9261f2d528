"""The text around the rows of an image, with special tokens as text."""

import re
from collections.abc import Callable, Sequence
from math import isqrt
from typing import NamedTuple, TypeAlias

import numpy as np

from localinfer.multimodal.media import digest_of
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

Part: TypeAlias = str | MediaEmbeddings
TILE_NAME = re.compile(r"row (\d+), column (\d+)")


class View(NamedTuple):
    """The rows of an image or of one of its tiles, the name of the encoder input, and the height and the width of the
    image in pixels."""

    name: str
    rows: MediaEmbeddings
    image_size: tuple[int, int]

    @property
    def is_overview(self) -> bool:
        return self.name == OVERVIEW

    @property
    def tile(self) -> tuple[int, int]:
        """The row and the column of a tile, from 1; (0, 0) for the overview."""
        match = TILE_NAME.fullmatch(self.name)
        return (int(match[1]), int(match[2])) if match else (0, 0)


Arrange: TypeAlias = Callable[[Sequence[View]], list[Part]]


def surround(begin: str, end: str) -> Arrange:
    """Return the arrangement with the same text before and after each view, which may be empty."""

    def arrange(views: Sequence[View]) -> list[Part]:
        return [part for view in views for part in (begin, view.rows, end) if part != ""]

    return arrange


def enclose(begin: str, end: str, *, overview_last: bool = False) -> Arrange:
    """Return the arrangement with text before the first view and after the last one."""

    def arrange(views: Sequence[View]) -> list[Part]:
        ordered = sorted(views, key=lambda view: view.is_overview) if overview_last else views
        return [begin, *(view.rows for view in ordered), end]

    return arrange


def join_tiles(views: Sequence[View]) -> MediaEmbeddings:
    """Return the rows of the overview, and those of all tiles as rows of one grid, as LLaVA-NeXT has them: without
    those of the padding, and with a newline at the end of each row. The last row of each view is the newline."""
    ordered = sorted(views, key=lambda view: not view.is_overview)
    all_rows = np.concatenate([view.rows.rows for view in ordered])
    newline = len(ordered[0].rows) - 1
    side, numbers = isqrt(newline), np.arange(len(all_rows)).reshape(len(views), newline + 1)[:, :-1]
    order = numbers[0]
    if len(views) > 1:
        rows, columns = max(view.tile for view in views)
        grid = numbers[1:].reshape(rows, columns, side, side).transpose(0, 2, 1, 3).reshape(rows * side, columns * side)
        shown = grid[unpadded(grid.shape, views[0].image_size)]
        order = np.concatenate([order, np.pad(shown, ((0, 0), (0, 1)), constant_values=newline).reshape(-1)])
    values = all_rows[order]
    return MediaEmbeddings(digest_of(values), values, len(values))


def unpadded(grid: tuple[int, ...], image_size: tuple[int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of a grid that an image of this size covers, which is in the middle of it."""
    (rows, columns), (height, width) = grid, image_size
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), 7))) // 2
        return slice(padding, rows - padding), slice(None)
    padding = (columns - int(round(width * (rows / height), 7))) // 2
    return slice(None), slice(padding, columns - padding)
