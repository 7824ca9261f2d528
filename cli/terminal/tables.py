"""Plain-text tables."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

INDENT = " " * 6  # of what is below the first cells of a row


def table(title: str, alignments: str, rows: Iterable[Sequence[str]], width: int = 0) -> Iterator[str]:
    """Yield the lines of a table: an empty line, the title and the rows. Yield nothing if there are no rows.

    `alignments` has one format alignment (`<` or `>`) per column. Columns are as wide as their widest cell. If a row is
    longer than `width` (0: no limit), the last cell of each row is below the others, wrapped at words.
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[f"{cell:{side}{n}}" for cell, side, n in zip(row, alignments, widths, strict=True)] for row in cells]
    folded = width and any(len(joined(row)) > width for row in padded)
    if cells:
        yield from ("", title)
    for row in padded:
        yield from folded_row(row, width) if folded else [joined(row)]


def joined(cells: Sequence[str]) -> str:
    return ("  " + "  ".join(cells)).rstrip()


def folded_row(cells: Sequence[str], width: int) -> Iterator[str]:
    """Yield a row as several lines: its first cells, and its last one. A long name gets a line of its own."""
    *first, last = cells
    if len(joined(first)) <= width:
        yield joined(first)
    else:
        yield joined(first[:1])
        yield INDENT + " ".join(" ".join(first[1:]).split())
    yield from textwrap.wrap(last.strip(), width, initial_indent=INDENT, subsequent_indent=INDENT)


def model_label(name: str) -> str:
    """Return a short label of a model: its name, or of a path the name of the file."""
    return Path(name).stem if name.endswith(".gguf") else name
