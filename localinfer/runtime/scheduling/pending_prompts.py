"""Prompts that are about to be evaluated, so that others can wait for them and then share their prefix."""

import time
from collections import abc
from dataclasses import dataclass

from localinfer.runtime.scheduling.request import Request
from localinfer.runtime.sequence import Sequence, common_prefix_length

RESERVATION_SECONDS = 2.0  # others wait this long for an announced prompt to be submitted


@dataclass(frozen=True)
class PrefixReservation:
    """A prompt whose prefix a sequence has just reused, and whose rest it is about to submit."""

    tokens: abc.Sequence[int]
    expires: float  # `time.monotonic()` in seconds

    @property
    def is_valid(self) -> bool:
        """Whether the reservation has not expired."""
        return time.monotonic() < self.expires


class PendingPrompts:
    """The queued prompts of all sequences, and those that have been announced.

    `queue` is the scheduler's queue. The caller holds the scheduler's lock.
    """

    def __init__(self, queue: abc.Sequence[Request]) -> None:
        self._queue = queue
        self._reservations: dict[Sequence, PrefixReservation] = {}

    def announce(self, sequence: Sequence, tokens: abc.Sequence[int]) -> None:
        """Announce that a sequence is going to hold these tokens."""
        self._reservations[sequence] = PrefixReservation(tokens, time.monotonic() + RESERVATION_SECONDS)

    def withdraw(self, sequence: Sequence) -> None:
        """Withdraw the announcement of a sequence, if there is one."""
        self._reservations.pop(sequence, None)

    def tokens_of(self, sequence: Sequence) -> abc.Sequence[int]:
        """Return the tokens that are queued or announced for a sequence, besides its cached ones."""
        for request in self._queue:
            if request.sequence is sequence:
                return list(map(int, request.ids[request.n_done :]))
        reservation = self._reservations.get(sequence)
        return reservation.tokens[len(sequence) :] if reservation and reservation.is_valid else ()

    def find_prefix(
        self, requester: Sequence, tokens: abc.Sequence[int], min_tokens: int
    ) -> tuple[Sequence, int] | None:
        """Return another sequence that is evaluating at least the first `min_tokens` of `tokens`, and the length of the
        common prefix. Both can share it."""
        if not requester.can_rewind:
            return None
        for sequence in [*self._reservations, *(request.sequence for request in self._queue)]:
            if sequence is not requester and sequence.modifiers.can_share(requester.modifiers):
                length = common_prefix_length([*sequence.tokens, *self.tokens_of(sequence)], tokens)
                if length >= max(min_tokens, len(sequence) + 1):
                    return sequence, length
        return None
