"""State: what layers keep of the past in numbers of a fixed size, which every token changes in place.

The tail of a convolution is such a state, or the matrix of a recurrent layer. What is added to it cannot be taken out
again. So a sequence goes back to a copy that was kept where it is likely to be needed: where turns of a conversation
begin and end. There is room for some copies of each sequence; a new one takes the place of the oldest.

The states of all layers of one sequence lie in a slot. Slots are pages: one that is kept, or that two sequences have,
is not changed. A run begins from it and ends in another one. So it does with guesses, of which some may be wrong; and
where states are small, those between the guesses are kept, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from localinfer.ops.layout import SEGMENT_WORDS
from localinfer.plan.buffers import Region
from localinfer.plan.memory.memory import Bytes, Memory
from localinfer.plan.memory.pages import Pages
from localinfer.plan.plan import Plan

COPIES = 4  # two for each turn: the last two turns of a conversation can be answered anew
GUESSES = 48  # states at most that are kept of a run of guesses
GUESSES_BYTES = 16 << 20  # that those take, but for the one that there is always room for


@dataclass(eq=False)
class Slots:
    """The states of all layers, (slots, bytes) each."""

    plan: Plan
    pages: Pages = field(default_factory=lambda: Pages(0))
    segments: Region = field(init=False)  # int64: see `localinfer.ops.segments`
    layers: list[Region] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of a slot, in bytes
    guesses: int = 0  # states that are kept of a run of guesses

    def __post_init__(self) -> None:
        self.segments = self.plan.region(8 + 8 * SEGMENT_WORDS * GUESSES * self.plan.sequences)

    def layer(self, nbytes: int) -> Region:
        """A state of one more layer; all zero at position 0."""
        self.layers.append(self.plan.region(0))
        self.sizes.append(nbytes)
        self.guesses = max(1, min(GUESSES, GUESSES_BYTES // sum(self.sizes)))
        self.pages = Pages((1 + COPIES + self.guesses) * self.plan.sequences)
        for region, size in zip(self.layers, self.sizes, strict=True):
            region.nbytes = len(self.pages) * size
        return self.layers[-1]

    @property
    def nbytes(self) -> int:
        return sum(region.nbytes for region in self.layers)

    def parts(self, slot: int) -> Sequence[Bytes]:
        """The state of each layer."""
        return [region.view(np.uint8).reshape(len(self.pages), -1)[slot] for region in self.layers]

    def empty(self) -> int:
        """A slot that nobody has, with nothing in it. Raises NoRoom."""
        slot = self.pages.take()
        for part in self.parts(slot):
            part[:] = 0
        return slot

    def add_segment(self, at: int, tokens: int, end: int, begin: int) -> None:
        """Have so many tokens of the batch go from one slot to another; the first of a batch are `at` 0."""
        numbers = self.segments.view(np.int64)
        before = int(numbers[0]) if at else 0
        place = 1 + SEGMENT_WORDS * before
        numbers[place : place + SEGMENT_WORDS] = tokens, end, begin
        numbers[0] = before + 1


class State(Memory):
    """One sequence's. Copies are named by how many positions were remembered when they were made."""

    rewinds = False

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._now: int | None = None  # None: nothing is remembered
        self._kept: dict[int, int] = {}  # n_past -> the slot, the oldest first
        self._guessed: dict[int, int] = {}  # the same of what was there before guesses
        self._sure: int | None = None  # positions from here on are guesses
        self._ahead: list[int] = []  # slots for the next run
        self._path: list[tuple[int, bool]] = []  # its parts: so many tokens, and whether they go to another slot
        self._n_past = 0
        self._is_whole = True  # False from `place` to `commit`: a run that ended in between left something of it

    def reset(self) -> None:
        self._settle()
        self._forget_copies(beyond=-1)
        self._become(None)
        self._n_past, self._is_whole = 0, True

    def fork(self) -> "State":
        other = State(self._slots)
        for slot in (self._now, *self._kept.values(), *self._guessed.values()):
            if slot is not None:
                self._slots.pages.share(slot)
        other._now, other._kept, other._guessed = self._now, self._kept.copy(), self._guessed.copy()
        other._n_past, other._is_whole = self._n_past, self._is_whole
        return other

    def reserve(self, first: int, count: int) -> None:  # noqa: ARG002 (slots are of any positions)
        if self._now is None:
            self._now = self._slots.empty()
        self._path = [*self._parts(count, self._slots.pages.is_shared(self._now))]
        wanted = sum(moves for _, moves in self._path)
        self._leave_ahead(wanted)
        while len(self._ahead) < wanted:
            self._ahead.append(self._slots.pages.take())

    def _parts(self, count: int, is_shared: bool) -> Iterator[tuple[int, bool]]:
        """What is sure changes the slot, if that is nobody else's; each part of the guesses goes to a new one, as long
        as there is room."""
        sure = count if self._sure is None else min(max(self._sure - self._n_past, 0), count)
        if sure:
            yield sure, is_shared
        guesses, room = count - sure, self._slots.guesses - len(self._guessed)
        each = -(-guesses // max(1, room))
        for done in range(0, guesses, max(1, each)):
            yield min(each, guesses - done), room > 0 or (is_shared and not sure)

    def place(self, first: int, count: int, at: int = 0) -> None:
        assert (self._is_whole, self._n_past) == (True, first), "a state goes on from where it is"
        self.reserve(first, count)
        assert self._now is not None
        begin, ends = self._now, iter(self._ahead)
        for tokens, moves in self._path:
            end = next(ends) if moves else begin
            self._slots.add_segment(at, tokens, end, begin)
            begin, at = end, at + tokens
        self._is_whole = all(moves for _, moves in self._path)

    def commit(self, n_past: int) -> None:
        for tokens, moves in self._path:
            if moves and self._sure is not None and self._n_past >= self._sure and self._now is not None:
                self._guessed[self._n_past], self._now = self._now, self._ahead.pop(0)
            elif moves:
                self._become(self._ahead.pop(0))
            self._n_past += tokens
        self._path, self._n_past, self._is_whole = [], n_past, True

    def reach(self, n: int) -> int:
        if self._is_whole and n >= self._n_past:
            return self._n_past
        return max((kept for kept in (*self._kept, *self._guessed) if kept <= n), default=0)

    def rewind(self, n: int) -> None:
        if not (self._is_whole and n == self._n_past):
            slot = self._guessed[n] if n in self._guessed else self._kept[n]
            self._slots.pages.share(slot)
            self._become(slot)
            self._n_past, self._is_whole = n, True
        self._settle()
        self._forget_copies(beyond=n)

    def keep(self) -> None:
        if self._n_past in self._kept or self._now is None:
            return
        if len(self._kept) == COPIES:
            self._slots.pages.give_back(self._kept.pop(next(iter(self._kept))))
        self._slots.pages.share(self._now)
        self._kept[self._n_past] = self._now

    def guess(self, sure: int) -> None:
        self._sure = self._n_past + sure

    def _settle(self) -> None:
        """Tokens are no guesses any more, and nothing is on its way."""
        self._sure = None
        self._leave_ahead(0)
        for slot in self._guessed.values():
            self._slots.pages.give_back(slot)
        self._guessed = {}

    def _leave_ahead(self, wanted: int) -> None:
        """Give back slots that the next run does not need."""
        for slot in self._ahead[wanted:]:
            self._slots.pages.give_back(slot)
        del self._ahead[wanted:]

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
        self._now = self._slots.empty() if self._now is None else self._now
        n_past = np.array([self._n_past], np.int64).view(np.uint8)
        return [n_past, *(part.copy() for part in self._slots.parts(self._now))]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        self._now = self._slots.empty()
        [n_past] = saved[0].view(np.int64)
        for part, kept in zip(self._slots.parts(self._now), saved[1:], strict=True):
            part[:] = kept
        self._n_past = int(n_past)
