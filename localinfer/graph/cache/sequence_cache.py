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
        """Return copies of the pages for `SequenceCache.load_pages`, and hold them no longer."""


class SequenceCache(ABC):
    """A cache of one sequence for some layers. Positions are counted from 0."""

    can_rewind = True  # to any position; otherwise only to checkpoints
    keeps_all_positions = False  # in pages that do not change once they are full; then it has the `..._pages` methods

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

    def set_bidirectional(self, start: int, end: int, row: int) -> None:  # noqa: B027 (only KV caches implement it)
        """Let the positions `start` .. `end` - 1, whose tokens begin at `row` of the next batch, attend to each other.
        """

    def hide_before(self, first: int, count: int, row: int) -> None:  # noqa: B027 (only KV caches implement it)
        """Let the `count` tokens from `row` on of the next batch attend to no position before `first`."""

    def set_draft_inputs(self, position: int, row: int) -> None:  # noqa: B027 (only KV caches implement it)
        """Map an uncommitted position to the token `row` of the next batch. Raises OutOfPagesError."""

    def set_query_inputs(self, position: int, row: int) -> None:  # noqa: B027 (only KV caches implement it)
        """Let the token `row` of the next batch, which has this position, attend to what precedes it. It has no keys
        and values of its own."""

    def set_block_inputs(  # noqa: B027 (only KV caches implement it)
        self, first: int, count: int, row: int, *, causal: bool
    ) -> None:
        """Map uncommitted positions to the tokens from `row` on of the next batch, which attend to each other, or if
        `causal` to those before them. Raises OutOfPagesError."""

    def hidden_state(self, position: int) -> NDArray[np.float32] | None:  # noqa: ARG002 (only one cache implements it)
        """Return the final hidden state of the token at a position, or None if it is not stored."""
        return None

    def fits(self, lengths: Sequence[int]) -> bool:  # noqa: ARG002 (recurrent states hold one text)
        """Return whether texts of these lengths can be packed."""
        return False

    def pack(self, lengths: Sequence[int]) -> None:
        """Map a batch of independent texts of these lengths, one after another. The cache must be empty before, and is
        invalid after the batch."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, n_past: int) -> None:
        """Mark the run as complete: the cache now holds n_past positions."""

    @abstractmethod
    def rewind_target(self, n: int) -> int:
        """Return the largest number of positions <= n that the cache can be rewound to."""

    @abstractmethod
    def rewind(self, n: int) -> None:
        """Drop all but the first n positions. n must come from `rewind_target`."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Keep the ability to rewind to the current state, as long as there is memory for it."""

    def begin_draft(self, n_confirmed: int) -> None:  # noqa: B027 (caches that can rewind need nothing)
        """Treat all positions from now on, but the first `n_confirmed`, as draft tokens: keep the ability to rewind to
        the states before and, where that is cheap, between them, until `rewind`."""

    def save_pages(self, first: int, end: int) -> Sequence[Bytes]:
        """Return copies of the pages `first` .. `end` - 1, for `load_pages`."""
        raise NotImplementedError

    def hold_pages(self, first: int, end: int) -> HeldPages:
        """Hold the pages `first` .. `end` - 1, which are full, so that they can be copied later."""
        raise NotImplementedError

    def load_pages(self, first: int, end: int, saved: Sequence[Bytes], n_past: int) -> None:
        """Load pages that were saved with the same graph behind the first `first` ones. The cache holds `n_past`
        positions when all of them are loaded.

        Several threads may load different pages if memory was reserved for all. Raises ValueError if they do not fit,
        and OutOfPagesError.
        """
        raise NotImplementedError

    @abstractmethod
    def save(self) -> Sequence[Bytes]:
        """Return copies of the contents, for `load`."""

    @abstractmethod
    def load(self, saved: Sequence[Bytes]) -> None:
        """Restore contents that were saved with the same graph. Raises ValueError if they do not fit; call `reset`
        then."""
