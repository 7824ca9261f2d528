"""Notices that a text goes round in circles, as those of small models may until the context is full."""

from collections.abc import Sequence

COPIES = 4  # in a row; a chorus comes twice or three times
SHORTEST = 96  # tokens of all copies together: a table may well have ten equal cells
LONGEST_PERIOD = 256  # tokens of one copy
INTERVAL = 16  # tokens between two looks


class LoopWatch:
    """Is shown one token after the other. `found` once the text has ended in a loop."""

    def __init__(self) -> None:
        self.found = False
        self._ids: list[int] = []

    def push(self, id: int) -> bool:
        """Whether this token is the one with which the loop is noticed."""
        self._ids.append(id)
        if self.found or len(self._ids) % INTERVAL:
            return False
        self.found = period(self._ids) > 0
        return self.found


def period(ids: Sequence[int]) -> int:
    """The length of what the tokens repeat at their end, at least COPIES times and over SHORTEST tokens; or 0."""
    for p in range(1, min(LONGEST_PERIOD, len(ids) // COPIES) + 1):
        n = max((COPIES - 1) * p, SHORTEST - p)
        if len(ids) >= n + p and ids[-1] == ids[-1 - p] and ids[-n:] == ids[-n - p : -p]:
            return p
    return 0
