"""The order in which sequences with and without hooks are evaluated.

Each set of points needs a graph of its own, so sequences with hooks at different points cannot share a batch: the sets
take turns.
"""

from collections import abc

from localinfer.runtime.scheduling.request import Request

MAX_REMEMBERED = 16  # sets of points


class HookTurns:
    """Selects the requests of the next batch by the points of their hooks, so that all sets of points take turns."""

    def __init__(self) -> None:
        self._served: list[frozenset[str]] = []  # the points of past batches, the last one at the end

    def next_requests(self, queue: abc.Iterable[Request]) -> list[Request]:
        """Return the requests with hooks at the same points, or without hooks, whose last turn was longest ago. Among
        those that had none, the oldest request decides."""
        requests = list(queue)
        points = [each.sequence.modifiers.points for each in requests]
        if not points:
            return []
        turn = {each: number for number, each in enumerate(self._served, 1)}
        chosen = min(points, key=lambda own: turn.get(own, 0))
        self._served = [*(each for each in self._served if each != chosen), chosen][-MAX_REMEMBERED:]
        return [each for each, own in zip(requests, points, strict=True) if own == chosen]
