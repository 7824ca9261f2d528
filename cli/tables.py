"""Tables of plain text."""

from collections.abc import Iterable, Iterator, Sequence


def table(title: str, alignments: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A title and rows of cells, each column as wide as its widest cell; nothing if there are no rows."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if cells:
        yield from ("", title)
    for row in cells:
        columns = zip(row, alignments, widths, strict=True)
        yield ("  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in columns)).rstrip()
