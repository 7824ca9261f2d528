"""The tables of `/why`: the tokens of an answer with their probabilities and alternatives."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.terminal import screen
from cli.terminal.token_coloring import information_bits, style_for_bits

if TYPE_CHECKING:
    from localinfer import Piece
    from localinfer.generation.pieces import Alternative

ALTERNATIVES = 10  # candidates that `/why N` shows
NEIGHBORS = 3  # tokens that `/why N` shows before and after the Nth
NARROW_COLUMNS = 60  # narrower terminals get shorter rows


def print_tokens(pieces: Sequence["Piece"]) -> None:
    console = stderr_console()
    console.print(token_table(pieces, range(len(pieces)), others=1 if console.width < NARROW_COLUMNS else 3))


def print_token(pieces: Sequence["Piece"], at: int) -> None:
    """Print the token at the 0-based index `at`, with its neighbours and the alternative candidates."""
    console = stderr_console()
    near = range(max(0, at - NEIGHBORS), min(len(pieces), at + NEIGHBORS + 1))
    console.print(token_table(pieces, near, others=0, marked=at))
    entropy = information_bits(pieces[at], "entropy") or 0.0
    table = create_table()
    table.add_column(f"token {at + 1}", overflow="fold")
    table.add_column("prob", justify="right", no_wrap=True)
    for each in pieces[at].top:
        chosen = "bold" if each.id == pieces[at].id else ""
        table.add_row(Text(quoted(each.text), style=chosen), percent(each.logprob))
    console.print(table)
    console.print(Text(f"{entropy:.1f} bits of entropy. Use /branch {at + 1} TOKEN to continue with another token."))


def token_table(pieces: Sequence["Piece"], indices: range, others: int, marked: int = -1) -> Table:
    """Return a table with a row per index in `indices` and up to `others` alternative candidates in each."""
    table = create_table()
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("token", overflow="fold")
    table.add_column("prob", justify="right", no_wrap=True)
    if others:
        table.add_column("instead", no_wrap=others == 1)
    for at in indices:
        piece = pieces[at]
        cells = [
            Text(f"{at + 1}", style="reverse" if at == marked else ""),
            Text(quoted(piece.text), style=style_for_bits(information_bits(piece, "prob") or 0.0)),
            Text(percent(piece.logprob or 0.0)),
        ]
        left = [each for each in piece.top if each.id != piece.id][:others]
        table.add_row(*cells, *([Text("  ").join(map(alternative, left))] if others else []))
    return table


def create_table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))


def alternative(each: "Alternative") -> Text:
    return Text(f"{quoted(each.text)} {percent(each.logprob)}")


def quoted(text: str) -> str:
    """Return the token in quotes, so that its spaces are visible."""
    return screen.one_line(repr(text))


def percent(logprob: float) -> str:
    p = 100 * math.exp(logprob)
    return f"{p:.0f} %" if p >= 9.95 else f"{p:.1f} %" if p >= 0.05 else "0 %"


def stderr_console() -> Console:
    return Console(
        file=sys.stderr, width=max(screen.columns() - 1, 20), no_color=not screen.has_color(), highlight=False,
        emoji=False, markup=False,
    )  # fmt: skip
