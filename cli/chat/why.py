"""The tables of `/why`: the tokens of an answer, how probable each was, and what might have come in its place."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli import screen
from cli.surprise import bits_of, style

if TYPE_CHECKING:
    from localinfer import Piece
    from localinfer.generation.pieces import Alternative

ALTERNATIVES = 10  # that `/why N` shows
AROUND = 3  # tokens before and behind it
NARROW = 60  # columns, in which less fits into a line


def show_all(pieces: Sequence["Piece"]) -> None:
    console = stderr()
    console.print(tokens(pieces, range(len(pieces)), others=1 if console.width < NARROW else 3))


def show_one(pieces: Sequence["Piece"], at: int) -> None:
    """The token at a place, from 0 on, with its neighbours and what might have come in its place."""
    console = stderr()
    near = range(max(0, at - AROUND), min(len(pieces), at + AROUND + 1))
    console.print(tokens(pieces, near, others=0, marked=at))
    entropy = bits_of(pieces[at], "entropy") or 0.0
    table = plain_table()
    table.add_column(f"token {at + 1}", overflow="fold")
    table.add_column("prob", justify="right", no_wrap=True)
    for each in pieces[at].top:
        chosen = "bold" if each.id == pieces[at].id else ""
        table.add_row(Text(shown(each.text), style=chosen), percent(each.logprob))
    console.print(table)
    console.print(Text(f"{entropy:.1f} bits of uncertainty. /branch {at + 1} TOKEN goes on from another one."))


def tokens(pieces: Sequence["Piece"], places: range, others: int, marked: int = -1) -> Table:
    """A row for each of these places, with so many other tokens that might have been there."""
    table = plain_table()
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("token", overflow="fold")
    table.add_column("prob", justify="right", no_wrap=True)
    if others:
        table.add_column("instead", no_wrap=others == 1)
    for at in places:
        piece = pieces[at]
        cells = [
            Text(f"{at + 1}", style="reverse" if at == marked else ""),
            Text(shown(piece.text), style=style(bits_of(piece, "prob") or 0.0)),
            Text(percent(piece.logprob or 0.0)),
        ]
        left = [each for each in piece.top if each.id != piece.id][:others]
        table.add_row(*cells, *([Text("  ").join(map(alternative, left))] if others else []))
    return table


def plain_table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))


def alternative(each: "Alternative") -> Text:
    return Text(f"{shown(each.text)} {percent(each.logprob)}")


def shown(text: str) -> str:
    """A token in quotes: its spaces count."""
    return screen.one_line(repr(text))


def percent(logprob: float) -> str:
    p = 100 * math.exp(logprob)
    return f"{p:.0f} %" if p >= 9.95 else f"{p:.1f} %" if p >= 0.05 else "0 %"


def stderr() -> Console:
    return Console(
        file=sys.stderr, width=max(screen.columns() - 1, 20), no_color=not screen.colourful(), highlight=False,
        emoji=False, markup=False,
    )  # fmt: skip
