"""The text around the rows of an image, with special tokens as text."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW
from localinfer.runtime.media_embeddings import MediaEmbeddings

Part: TypeAlias = str | MediaEmbeddings
TILE_NAME = re.compile(r"row (\d+), column (\d+)")


class View(NamedTuple):
    """The rows of an image or of one of its tiles, and the name of the encoder input."""

    name: str
    rows: MediaEmbeddings

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
