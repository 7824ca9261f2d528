"""The sequences that the next batch waits for."""

import threading

from localinfer.runtime.sequence import Sequence

ARRIVAL_TIMEOUT = 0.005  # seconds that a batch waits for the next request of the last batch's sequences


class ExpectedSequences:
    """The sequences of the last batch that have no new request yet. Callers hold the condition, except of `wait`."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition, self._sequences = condition, set[Sequence]()

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def has_others(self, sequence: Sequence) -> bool:
        """Return whether another sequence is expected."""
        return bool(self._sequences - {sequence})

    def add(self, sequence: Sequence) -> None:
        self._sequences.add(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Stop waiting for a sequence, without waking the thread of a batch that waits."""
        self._sequences.discard(sequence)

    def mark_arrived(self, sequence: Sequence) -> None:
        """Stop waiting for a sequence. A batch that waits for no other one begins."""
        self._sequences.discard(sequence)
        if not self._sequences:
            self._condition.notify_all()

    def wait(self) -> None:
        """Wait for new requests as long as they keep arriving."""
        with self._condition:
            while missing := len(self._sequences):
                self._condition.wait_for(lambda: not self._sequences, ARRIVAL_TIMEOUT)
                if len(self._sequences) == missing:
                    self._sequences.clear()
