"""Detection of repetition loops, which small models may produce until the context is full."""

from collections.abc import Sequence

MIN_COPIES = 4  # consecutive copies; a chorus comes two or three times
MIN_TOTAL_TOKENS = 96  # tokens of all copies together; a table may repeat a value ten times
MAX_PERIOD = 256  # tokens of one copy
CHECK_INTERVAL = 16  # tokens between two checks


class LoopDetector:
    """A detector that receives one token after the other. `is_looping` is set once the text ends in a loop."""

    def __init__(self) -> None:
        self.is_looping = False
        self._ids: list[int] = []

    def push(self, id: int) -> bool:
        """Add a token and return whether a loop is detected at it. It returns True only once."""
        self._ids.append(id)
        if self.is_looping or len(self._ids) % CHECK_INTERVAL:
            return False
        self.is_looping = repeated_period(self._ids) > 0
        return self.is_looping


def repeated_period(ids: Sequence[int]) -> int:
    """Return the period of the repetition at the end of `ids`, or 0.

    A repetition has at least MIN_COPIES copies and MIN_TOTAL_TOKENS tokens.
    """
    for p in range(1, min(MAX_PERIOD, len(ids) // MIN_COPIES) + 1):
        n = max((MIN_COPIES - 1) * p, MIN_TOTAL_TOKENS - p)
        if len(ids) >= n + p and ids[-1] == ids[-1 - p] and ids[-n:] == ids[-n - p : -p]:
            return p
    return 0
