"""Cells of the tables that show a view: escaped texts on a background that shows a number from 0 to 1."""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # rich is only imported to print a view
    from rich.table import Table
    from rich.text import Text

HUE = 140  # degrees, green; the lightness shows the shade


class Cell(NamedTuple):
    """A text, its shade, and what a notebook shows when the mouse is over it."""

    text: str
    shade: float = 0.0
    title: str = ""

    def html(self, tag: str = "td") -> str:
        """Return an HTML element."""
        style = f"background:hsl({HUE},60%,{100 - 45 * self.shade:.0f}%);color:black"
        return f'<{tag} title="{html.escape(self.title)}" style="{style}">{html.escape(self.text)}</{tag}>'

    def rich(self) -> "Text":
        """Return a text for terminals."""
        from rich.text import Text

        faded = round(255 * (1 - self.shade))
        return Text(self.text, f"black on rgb({faded},{round(255 - 55 * self.shade)},{faded})")


class Row(NamedTuple):
    """A row of a table, with its label."""

    label: str
    cells: Sequence[Cell]


def visible(token: str) -> str:
    """Return the text of a token with escapes in place of what cannot be seen, such as a line break."""
    return repr(token)[1:-1]


def html_table(header: Iterable[str], rows: Iterable[Row]) -> str:
    """Return a table for notebooks. Above the labels of the rows, the header has an empty cell."""
    cells = "".join(f"<th>{html.escape(text)}</th>" for text in ("", *header))
    lines = (f"<tr><th>{html.escape(row.label)}</th>{''.join(each.html() for each in row.cells)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def rich_table(header: Iterable[str], rows: Iterable[Row]) -> "Table":
    """Return the same table for terminals."""
    from rich.table import Table
    from rich.text import Text

    table = Table("")
    for text in header:
        table.add_column(Text(text))
    for row in rows:
        table.add_row(Text(row.label), *(each.rich() for each in row.cells))
    return table
