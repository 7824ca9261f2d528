"""The interface of a sequence's caches: keys and values in pages, or a recurrent state of fixed size.

The engine uses only this interface and does not depend on the kind of cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class HeldPages(Protocol):
    """Pages that keep their contents until they are copied, whatever happens to the sequence that filled them."""

    nbytes: int  # of the copies

    def copy(self) -> Sequence[Bytes]:
        """Return copies of the pages for `KVCache.load_pages`, and hold them no longer."""


class SequenceCache(ABC):
    """A cache of one sequence for some layers. Positions are counted from 0."""

    can_rewind = True  # to any position; otherwise only to checkpoints

    @abstractmethod
    def reset(self) -> None:
        """Drop all positions and release their memory."""

    @abstractmethod
    def fork(self) -> "SequenceCache":
        """Return a cache with the same contents for another sequence. Memory is shared and copied on write."""

    @abstractmethod
    def reserve(self, first: int, count: int) -> None:
        """Reserve memory for the positions first .. first + count - 1. Raises OutOfPagesError without changing the
        contents."""

    @abstractmethod
    def set_inputs(self, first: int, count: int, row: int = 0) -> None:
        """Map these positions to the tokens from `row` on of the next batch, where the kernels read them; a batch
        starts with `row` = 0. Raises OutOfPagesError unless memory was reserved."""

    def hidden_state(self, position: int) -> NDArray[np.float32] | None:  # noqa: ARG002 (only one cache implements it)
        """Return the final hidden state of the token at a position, or None if it is not stored."""
        return None

    @abstractmethod
    def commit(self, n_past: int) -> None:
        """Mark the run as complete: the cache now holds n_past positions."""

    @abstractmethod
    def rewind_target(self, n: int) -> int:
        """Return the largest number of positions <= n that the cache can be rewound to."""

    @abstractmethod
    def rewind(self, n: int) -> None:
        """Drop all but the first n positions. n must come from `rewind_target`."""

    def checkpoint(self) -> None:  # noqa: B027 (caches that can rewind need nothing)
        """Keep the ability to rewind to the current state, as long as there is memory for it."""

    def begin_draft(self, n_confirmed: int) -> None:  # noqa: B027 (caches that can rewind need nothing)
        """Treat all positions from now on, but the first `n_confirmed`, as draft tokens: keep the ability to rewind to
        the states before and, where that is cheap, between them, until `rewind`."""

    @abstractmethod
    def save(self) -> Sequence[Bytes]:
        """Return copies of the contents, for `load`."""

    @abstractmethod
    def load(self, saved: Sequence[Bytes]) -> None:
        """Restore contents that were saved with the same graph. Raises ValueError if they do not fit; call `reset`
        then."""
