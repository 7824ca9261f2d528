"""The lines at the end of the screen that may still change. What stands above them is printed for good."""

import re
import sys
from itertools import takewhile

from rich.cells import cell_len

STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Region:
    """Draws by what is different: a line that stays is not written again, one that grows is only continued.

    The cursor stands behind the last line. What has left the screen at its top can no longer be changed, and is not
    written a second time.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.columns, self.rows = size  # of the terminal; whoever knows of a new size sets it
        self._lines: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Make the region these lines, which fit into the columns; styles end within a line."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._lines, lines, strict=False)))
        text = self._changes(same, lines) if lines or self._lines else ""
        self._lines = list(lines)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()

    def settle(self, lines: list[str]) -> None:
        """These lines are final: the region begins anew below them."""
        self.show(lines)
        if lines:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._lines = []

    def _changes(self, same: int, lines: list[str]) -> str:
        """What turns the lines on the screen into `lines`, of which the first `same` ones are there."""
        old = self._lines
        if same == len(old):
            return ("\n" if same and lines[same:] else "") + "\n".join(lines[same:])
        if same == len(old) - 1 and same < len(lines) and lines[same].startswith(old[same]):
            return lines[same][len(old[same]) :] + "".join(f"\n{line}" for line in lines[same + 1 :])
        first = min(same, max(len(lines) - 1, 0))  # fewer lines than before: the last one is where the cursor goes
        up = sum(map(self._height, old[first:])) - 1
        while first < len(old) - 1 and up >= self.rows:
            up -= self._height(old[first])
            first += 1
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J" + "\n".join(lines[first:])

    def _height(self, line: str) -> int:
        """Rows on the screen: the terminal may have become narrower since the line was made."""
        return max(1, -(-cell_len(STYLE.sub("", line)) // max(self.columns, 1)))
