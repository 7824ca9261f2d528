"""Tokens in the colour of how much they surprise, in bits: `--color-by`, and the table of `/why`.

    green  0: what had to come      yellow  3: one in 8      red  6 and more: one in 64
"""

import math
import os
import sys
from colorsys import hsv_to_rgb
from typing import TYPE_CHECKING, Literal

from cli import screen

if TYPE_CHECKING:
    from rich.style import Style

    from localinfer import Piece

ColorBy = Literal["prob", "entropy"]

RED_BITS = 6.0
GREEN_DEGREES = 120.0
LEGEND = (
    "On a terminal, colour each token by its own probability (prob), or by how uncertain the model was there "
    "(entropy): green is 0 bits, yellow 3 (one in 8), red 6 and more (one in 64). None with NO_COLOR."
)


class Painter:
    """Writes pieces to a terminal on stdout; those without probabilities as they are."""

    def __init__(self, by: ColorBy) -> None:
        from rich.color import ColorSystem
        from rich.console import Console

        self.by = by
        names = {"standard": "STANDARD", "256": "EIGHT_BIT", "truecolor": "TRUECOLOR"}
        self._system = ColorSystem[names.get(Console(file=sys.stdout).color_system or "", "STANDARD")]

    def write(self, piece: "Piece", text: str) -> None:
        if (bits := bits_of(piece, self.by)) is not None:
            text = style(bits).render(screen.harmless(text), color_system=self._system)
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            screen.write(text)


def painter(by: ColorBy | None) -> Painter | None:
    """None where there are to be no colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb" or not sys.stdout.isatty()
    return None if by is None or plain else Painter(by)


def bits_of(piece: "Piece", by: ColorBy) -> float | None:
    """How surprising it is, or was to be expected to be; None if the piece does not tell."""
    nats = piece.entropy if by == "entropy" else None if piece.logprob is None else -piece.logprob
    return None if nats is None else nats / math.log(2)


def style(bits: float) -> "Style":
    from rich.color import Color
    from rich.style import Style

    hue = GREEN_DEGREES * (1 - min(max(bits / RED_BITS, 0.0), 1.0))
    red, green, blue = (255 * part for part in hsv_to_rgb(hue / 360, 0.75, 0.85))
    return Style(color=Color.from_rgb(red, green, blue))
