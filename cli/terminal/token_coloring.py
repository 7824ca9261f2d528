"""Token colours by information content in bits, for `--color-by` and the table of `/why`.

green  0 bits (certain)      yellow  3 bits (probability 1/8)      red  6 bits or more (1/64 or less)
"""

import math
import os
import sys
from colorsys import hsv_to_rgb
from typing import TYPE_CHECKING, Literal

from cli.terminal import screen
from localinfer.escaping import terminal_text

if TYPE_CHECKING:
    from rich.style import Style

    from localinfer import Piece

ColorBy = Literal["prob", "entropy"]

RED_BITS = 6.0
GREEN_DEGREES = 120.0
COLOR_BY_HELP = (
    "Colour tokens on a terminal by their probability (prob) or by the entropy of the distribution (entropy): "
    "green is 0 bits, yellow 3 bits (1/8), red 6 bits or more (1/64). NO_COLOR disables it."
)


class TokenPainter:
    """Writes coloured pieces to a terminal on stdout. Pieces without probabilities are written uncoloured."""

    def __init__(self, by: ColorBy) -> None:
        from rich.color import ColorSystem
        from rich.console import Console

        self.by = by
        names = {"standard": "STANDARD", "256": "EIGHT_BIT", "truecolor": "TRUECOLOR"}
        self._system = ColorSystem[names.get(Console(file=sys.stdout).color_system or "", "STANDARD")]

    def write(self, piece: "Piece", text: str) -> None:
        if (bits := information_bits(piece, self.by)) is not None:
            text = style_for_bits(bits).render(terminal_text(text), color_system=self._system)
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            screen.write(text)


def create_painter(by: ColorBy | None) -> TokenPainter | None:
    """Return a painter, or None if colours are off."""
    plain = os.environ.get("NO_COLOR") or not (sys.stdout.isatty() and screen.interprets_escape_sequences())
    return None if by is None or plain else TokenPainter(by)


def information_bits(piece: "Piece", by: ColorBy) -> float | None:
    """Return the surprisal of the token, or the entropy at its position, in bits; None if the piece has neither."""
    nats = piece.entropy if by == "entropy" else None if piece.logprob is None else -piece.logprob
    return None if nats is None else nats / math.log(2)


def style_for_bits(bits: float) -> "Style":
    """Return the colour of a token with this information content."""
    from rich.color import Color
    from rich.style import Style

    hue = GREEN_DEGREES * (1 - min(max(bits / RED_BITS, 0.0), 1.0))
    red, green, blue = (255 * channel for channel in hsv_to_rgb(hue / 360, 0.75, 0.85))
    return Style(color=Color.from_rgb(red, green, blue))
