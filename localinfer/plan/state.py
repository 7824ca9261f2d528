"""State: what layers keep of the past in numbers of a fixed size, which every token changes in place.

The tail of a convolution is such a state, or the matrix of a recurrent layer. What is added to it cannot be taken out
again. So a sequence goes back to a copy that was kept where it is likely to be needed: where turns of a conversation
begin and end. There is room for some copies of each sequence; a new one takes the place of the oldest.

The states of all layers of one sequence lie in a slot. Slots are pages: one that is kept, or that two sequences have,
is copied before it is changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from localinfer.ops.layout import SEGMENT_WORDS
from localinfer.plan.buffers import Region
from localinfer.plan.memory import Bytes, Memory
from localinfer.plan.pages import Pages
from localinfer.plan.plan import Plan

COPIES = 4  # two for each turn: the last two turns of a conversation can be answered anew


@dataclass(eq=False)
class Slots:
    """The states of all layers, (slots, bytes) each."""

    plan: Plan
    pages: Pages = field(init=False)
    segments: Region = field(init=False)  # int64: see `localinfer.ops.segments`
    layers: list[Region] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pages = Pages((1 + COPIES) * self.plan.sequences)
        self.segments = self.plan.region(8 + 8 * SEGMENT_WORDS * self.plan.sequences)

    def layer(self, nbytes: int) -> Region:
        """A state of one more layer; all zero at position 0."""
        self.layers.append(self.plan.region(len(self.pages) * nbytes))
        return self.layers[-1]

    @property
    def nbytes(self) -> int:
        return sum(region.nbytes for region in self.layers)

    def parts(self, slot: int) -> Sequence[Bytes]:
        """The state of each layer."""
        return [region.view(np.uint8).reshape(len(self.pages), -1)[slot] for region in self.layers]

    def add_segment(self, at: int, tokens: int, slot: int) -> None:
        """Have so many tokens of the batch change a slot; the first of a batch are `at` 0."""
        numbers = self.segments.view(np.int64)
        before = int(numbers[0]) if at else 0
        place = 1 + SEGMENT_WORDS * before
        numbers[place : place + SEGMENT_WORDS] = tokens, slot, 0
        numbers[0] = before + 1


class State(Memory):
    """One sequence's. Copies are named by how many positions were remembered when they were made."""

    rewinds = False

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._now: int | None = None  # None: nothing is remembered
        self._kept: dict[int, int] = {}  # n_past -> the slot, the oldest first
        self._n_past = 0
        self._is_whole = True  # False from `place` to `commit`: a run that ended in between left something of it

    def reset(self) -> None:
        self._forget_copies(beyond=-1)
        self._become(None)
        self._n_past, self._is_whole = 0, True

    def fork(self) -> "State":
        other = State(self._slots)
        for slot in (self._now, *self._kept.values()):
            if slot is not None:
                self._slots.pages.share(slot)
        other._now, other._kept = self._now, self._kept.copy()
        other._n_past, other._is_whole = self._n_past, self._is_whole
        return other

    def reserve(self, first: int, count: int) -> None:  # noqa: ARG002 (a slot has room for any number)
        if self._now is not None and not self._slots.pages.is_shared(self._now):
            return
        own = self._slots.pages.take()
        for n, part in enumerate(self._slots.parts(own)):
            part[:] = 0 if self._now is None else self._slots.parts(self._now)[n]
        self._become(own)

    def place(self, first: int, count: int, at: int = 0) -> None:
        assert (self._is_whole, self._n_past) == (True, first), "a state goes on from where it is"
        self.reserve(first, count)
        assert self._now is not None
        self._slots.add_segment(at, count, self._now)
        self._is_whole = False

    def commit(self, n_past: int) -> None:
        self._n_past, self._is_whole = n_past, True

    def reach(self, n: int) -> int:
        if self._is_whole and n >= self._n_past:
            return self._n_past
        return max((kept for kept in self._kept if kept <= n), default=0)

    def rewind(self, n: int) -> None:
        if not (self._is_whole and n == self._n_past):
            self._slots.pages.share(self._kept[n])
            self._become(self._kept[n])
            self._n_past, self._is_whole = n, True
        self._forget_copies(beyond=n)

    def keep(self) -> None:
        if self._n_past in self._kept or self._now is None:
            return
        if len(self._kept) == COPIES:
            self._slots.pages.give_back(self._kept.pop(next(iter(self._kept))))
        self._slots.pages.share(self._now)
        self._kept[self._n_past] = self._now

    def _become(self, slot: int | None) -> None:
        """Have this slot, which is counted already, in the place of the one before."""
        if self._now is not None:
            self._slots.pages.give_back(self._now)
        self._now = slot

    def _forget_copies(self, beyond: int) -> None:
        for n_past in [n_past for n_past in self._kept if n_past > beyond]:
            self._slots.pages.give_back(self._kept.pop(n_past))

    def save(self) -> Sequence[Bytes]:
        """The number of positions, then the state of each layer."""
        self.reserve(0, 0)
        assert self._now is not None
        n_past = np.array([self._n_past], np.int64).view(np.uint8)
        return [n_past, *(part.copy() for part in self._slots.parts(self._now))]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        self.reserve(0, 0)
        assert self._now is not None
        [n_past] = saved[0].view(np.int64)
        for part, kept in zip(self._slots.parts(self._now), saved[1:], strict=True):
            part[:] = kept
        self._n_past = int(n_past)
