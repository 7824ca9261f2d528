"""The region at the end of the terminal whose lines are redrawn. Lines above it are final."""

import re
import sys
from itertools import takewhile

from rich.cells import cell_len

STYLE = re.compile(r"\x1b\[[0-9;]*m")


class LiveRegion:
    """Redraws lines incrementally: unchanged lines are not written again, and a line that grows is only extended.

    The cursor stays at the end of the last line. Lines that have scrolled off the top of the terminal can no longer
    change and are not written again.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.columns, self.rows = size  # size of the terminal; the owner updates it
        self._lines: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Draw these lines as the region. Lines must fit into the columns, and styles must end within a line."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._lines, lines, strict=False)))
        text = self._changes(same, lines) if lines or self._lines else ""
        self._lines = list(lines)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()

    def commit(self, lines: list[str]) -> None:
        """Draw these lines as final; an empty region begins below them."""
        self.show(lines)
        if lines:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._lines = []

    def _changes(self, same: int, lines: list[str]) -> str:
        """Return the output that turns the current lines into `lines`, of which the first `same` are unchanged."""
        old = self._lines
        if same == len(old):
            return ("\n" if same and lines[same:] else "") + "\n".join(lines[same:])
        if same == len(old) - 1 and same < len(lines) and lines[same].startswith(old[same]):
            return lines[same][len(old[same]) :] + "".join(f"\n{line}" for line in lines[same + 1 :])
        first = min(same, max(len(lines) - 1, 0))  # with fewer lines, the cursor moves to the last one
        up = sum(map(self._height, old[first:])) - 1
        while first < len(old) - 1 and up >= self.rows:
            up -= self._height(old[first])
            first += 1
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J" + "\n".join(lines[first:])

    def _height(self, line: str) -> int:
        """Return the number of terminal rows of a line, which wraps if the terminal has become narrower."""
        return max(1, -(-cell_len(STYLE.sub("", line)) // max(self.columns, 1)))
