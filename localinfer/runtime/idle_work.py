"""Idle work: what the calling thread does while it waits for a run of the compute graph, without delaying the run."""

from collections.abc import Callable, Sized


class IdleWork:
    """Callbacks, each with the items that are pending for it."""

    def __init__(self) -> None:
        self._entries: list[tuple[Sized, Callable[[], None]]] = []

    def add(self, pending: Sized, work: Callable[[], None]) -> None:
        """Register a callback, once, to be called during runs whenever `pending` is not empty."""
        if all(work != other for _, other in self._entries):
            self._entries.append((pending, work))

    def due(self) -> list[Callable[[], None]]:
        """Return the callbacks for which items are pending."""
        return [work for pending, work in self._entries if len(pending)]

    def run(self) -> None:
        """Call all callbacks now."""
        for _, work in self._entries:
            work()
