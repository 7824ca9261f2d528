"""Plain-text tables."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def table(title: str, alignments: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: an empty line, the title and the rows. Yield nothing if there are no rows.

    `alignments` has one format alignment (`<` or `>`) per column. Columns are as wide as their widest cell.
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if cells:
        yield from ("", title)
    for row in cells:
        columns = zip(row, alignments, widths, strict=True)
        yield ("  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in columns)).rstrip()


def model_label(name: str) -> str:
    """Return a short label of a model: its name, or of a path the name of the file."""
    return Path(name).stem if name.endswith(".gguf") else name
