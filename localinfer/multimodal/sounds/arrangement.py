"""The text around the rows of a sound."""

from collections.abc import Sequence

from localinfer.multimodal.encoders.arrangement import Arrange, Part, View


def enclose(begin: str, end: str) -> Arrange:
    """Return the arrangement with text before the rows of the first chunk and after those of the last one; it may be
    empty."""

    def arrange(views: Sequence[View]) -> list[Part]:
        parts: list[Part] = [begin, *(view.rows for view in views), end]
        return [part for part in parts if part != ""]

    return arrange
