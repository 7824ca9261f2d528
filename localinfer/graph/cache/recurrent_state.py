"""Recurrent state: layers' memory of fixed size, which every token updates in place.

A state is the tail of a convolution or the state matrix of a recurrent layer. An update cannot be undone, so a sequence
can only rewind to a checkpoint. Checkpoints are made where rewinding is likely: where messages of a conversation begin
and end. A sequence has a few checkpoints; a new one replaces the oldest.

The states of all layers of a sequence are in a slot. Slots are reference-counted like pages: a slot that is a
checkpoint or that two sequences share is not modified. Instead, a run reads from it and writes to another slot. The
same applies to draft tokens; if states are small, the states between draft tokens are stored, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from localinfer.graph.cache.page_pool import PagePool
from localinfer.graph.cache.sequence_cache import Bytes, SequenceCache
from localinfer.graph.ops.buffers import Region
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.kernels.layout import SEGMENT_WORDS

MAX_CHECKPOINTS = 4  # two per turn: the last two turns of a conversation can be regenerated
MAX_DRAFT_STATES = 48  # states stored per draft
MAX_DRAFT_STATE_BYTES = 16 << 20  # memory of these states; one is always stored


@dataclass(eq=False)
class StatePool:
    """The states of all layers, (slots, bytes) each."""

    graph: ComputeGraph
    pages: PagePool = field(default_factory=lambda: PagePool(0))
    segments: Region = field(init=False)  # int64: see `localinfer.kernels.segments`
    layers: list[Region] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes per slot
    n_draft_states: int = 0  # states stored per draft
    _n_taken: int = 0  # layers that the graph that is being built has

    def __post_init__(self) -> None:
        self.segments = self.graph.region(8 + 8 * SEGMENT_WORDS * MAX_DRAFT_STATES * self.graph.sequences)

    def add_layer(self, nbytes: int) -> Region:
        """Add the state of a layer, which is zero at position 0. A convolution over one token has an empty state."""
        self._n_taken += 1
        if self._n_taken <= len(self.layers):
            return self.layers[self._n_taken - 1]
        self.layers.append(self.graph.region(0))
        self.sizes.append(nbytes)
        self.n_draft_states = max(1, min(MAX_DRAFT_STATES, MAX_DRAFT_STATE_BYTES // max(1, sum(self.sizes))))
        self.pages = PagePool((1 + MAX_CHECKPOINTS + self.n_draft_states) * self.graph.sequences)
        for region, size in zip(self.layers, self.sizes, strict=True):
            region.nbytes = len(self.pages) * size
        return self.layers[-1]

    def restart(self) -> None:
        """Make `add_layer` return the states again, from the first layer on, to another graph of the same model."""
        self._n_taken = 0

    @property
    def nbytes(self) -> int:
        return sum(region.nbytes for region in self.layers)

    def layer_states(self, slot: int) -> Sequence[Bytes]:
        """Return the state of each layer in a slot."""
        pairs = zip(self.layers, self.sizes, strict=True)
        return [region.view(np.uint8).reshape(len(self.pages), size)[slot] for region, size in pairs]

    def allocate_zeroed(self) -> int:
        """Return a zeroed slot. Raises OutOfPagesError."""
        slot = self.pages.allocate()
        for state in self.layer_states(slot):
            state[:] = 0
        return slot

    def add_segment(self, at: int, tokens: int, end: int, begin: int) -> None:
        """Let the next `tokens` tokens of the batch update the state from slot `begin` to slot `end`. `at` is 0 for the
        first ones."""
        numbers = self.segments.view(np.int64)
        n_before = int(numbers[0]) if at else 0
        index = 1 + SEGMENT_WORDS * n_before
        numbers[index : index + SEGMENT_WORDS] = tokens, end, begin
        numbers[0] = n_before + 1

    def slot_after(self, row: int) -> int:
        """Return the slot of the state after a row of the batch, the last one of a segment."""
        numbers = self.segments.view(np.int64)
        segments = numbers[1 : 1 + SEGMENT_WORDS * int(numbers[0])].reshape(-1, SEGMENT_WORDS)
        [number] = np.flatnonzero(np.cumsum(segments[:, 0]) == row + 1)
        return int(segments[number, 1])


class RecurrentState(SequenceCache):
    """The recurrent state of one sequence. Checkpoints are identified by their number of positions."""

    can_rewind = False

    def __init__(self, slots: StatePool) -> None:
        self._pool = slots
        self._slot: int | None = None  # None: empty
        self._checkpoints: dict[int, int] = {}  # n_past -> slot, oldest first
        self._draft_slots: dict[int, int] = {}  # n_past -> slot before draft tokens
        self._draft_start: int | None = None  # the first position of draft tokens
        self._reserved: list[int] = []  # slots for the next run
        # Segments of the run: the number of tokens, and whether they write to a new slot.
        self._run_segments: list[tuple[int, bool]] = []
        self._n_past = 0
        self._is_consistent = True  # False from `set_inputs` to `commit`: an interrupted run leaves a partial update

    def reset(self) -> None:
        self._end_draft()
        self._drop_checkpoints(beyond=-1)
        self._replace_slot(None)
        self._n_past, self._is_consistent = 0, True

    def fork(self) -> "RecurrentState":
        other = RecurrentState(self._pool)
        for slot in (self._slot, *self._checkpoints.values(), *self._draft_slots.values()):
            if slot is not None:
                self._pool.pages.retain(slot)
        other._slot, other._checkpoints, other._draft_slots = (
            self._slot,
            self._checkpoints.copy(),
            self._draft_slots.copy(),
        )
        other._n_past, other._is_consistent = self._n_past, self._is_consistent
        return other

    def reserve(self, first: int, count: int) -> None:  # noqa: ARG002 (slots are independent of positions)
        if self._slot is None:
            self._slot = self._pool.allocate_zeroed()
        self._run_segments = [*self._split_run(count, self._pool.pages.is_shared(self._slot))]
        n_needed = sum(new_slot for _, new_slot in self._run_segments)
        self._release_reserved(n_needed)
        while len(self._reserved) < n_needed:
            self._reserved.append(self._pool.pages.allocate())

    def _split_run(self, count: int, is_shared: bool) -> Iterator[tuple[int, bool]]:
        """Yield the segments of a run: the number of tokens, and whether they write to a new slot.

        Confirmed tokens update the current slot, if it is not shared. Draft tokens are divided into segments with a new
        slot each, as long as there are slots.
        """
        n_confirmed = count if self._draft_start is None else min(max(self._draft_start - self._n_past, 0), count)
        if n_confirmed:
            yield n_confirmed, is_shared
        n_draft, n_slots = count - n_confirmed, self._pool.n_draft_states - len(self._draft_slots)
        each = -(-n_draft // max(1, n_slots))
        for done in range(0, n_draft, max(1, each)):
            yield min(each, n_draft - done), n_slots > 0 or (is_shared and not n_confirmed)

    def set_inputs(self, first: int, count: int, row: int = 0) -> None:
        assert (self._is_consistent, self._n_past) == (True, first), "a state can only continue at its own position"
        self.reserve(first, count)
        assert self._slot is not None
        begin, ends = self._slot, iter(self._reserved)
        for tokens, new_slot in self._run_segments:
            end = next(ends) if new_slot else begin
            self._pool.add_segment(row, tokens, end, begin)
            begin, row = end, row + tokens
        self._is_consistent = all(new_slot for _, new_slot in self._run_segments)

    def commit(self, n_past: int) -> None:
        for tokens, new_slot in self._run_segments:
            if (
                new_slot
                and self._draft_start is not None
                and self._n_past >= self._draft_start
                and self._slot is not None
            ):
                self._draft_slots[self._n_past], self._slot = self._slot, self._reserved.pop(0)
            elif new_slot:
                self._replace_slot(self._reserved.pop(0))
            self._n_past += tokens
        self._run_segments, self._n_past, self._is_consistent = [], n_past, True

    def rewind_target(self, n: int) -> int:
        if self._is_consistent and n >= self._n_past:
            return self._n_past
        return max((n_past for n_past in (*self._checkpoints, *self._draft_slots) if n_past <= n), default=0)

    def rewind(self, n: int) -> None:
        if not (self._is_consistent and n == self._n_past):
            slot = self._draft_slots[n] if n in self._draft_slots else self._checkpoints[n]
            self._pool.pages.retain(slot)
            self._replace_slot(slot)
            self._n_past, self._is_consistent = n, True
        self._end_draft()
        self._drop_checkpoints(beyond=n)

    def checkpoint(self) -> None:
        if self._n_past in self._checkpoints or self._slot is None:
            return
        if len(self._checkpoints) == MAX_CHECKPOINTS:
            self._pool.pages.release(self._checkpoints.pop(next(iter(self._checkpoints))))
        self._pool.pages.retain(self._slot)
        self._checkpoints[self._n_past] = self._slot

    def begin_draft(self, n_confirmed: int) -> None:
        self._draft_start = self._n_past + n_confirmed

    def _end_draft(self) -> None:
        """Confirm all tokens and release the slots of draft tokens."""
        self._draft_start = None
        self._release_reserved(0)
        for slot in self._draft_slots.values():
            self._pool.pages.release(slot)
        self._draft_slots = {}

    def _release_reserved(self, n_needed: int) -> None:
        """Release reserved slots that the next run does not need."""
        for slot in self._reserved[n_needed:]:
            self._pool.pages.release(slot)
        del self._reserved[n_needed:]

    def _replace_slot(self, slot: int | None) -> None:
        """Replace the current slot with one that already has a reference."""
        if self._slot is not None:
            self._pool.pages.release(self._slot)
        self._slot = slot

    def _drop_checkpoints(self, beyond: int) -> None:
        for n_past in [n_past for n_past in self._checkpoints if n_past > beyond]:
            self._pool.pages.release(self._checkpoints.pop(n_past))

    def save(self) -> Sequence[Bytes]:
        """Return the number of positions and the state of each layer."""
        self._slot = self._pool.allocate_zeroed() if self._slot is None else self._slot
        n_past = np.array([self._n_past], np.int64).view(np.uint8)
        return [n_past, *(state.copy() for state in self._pool.layer_states(self._slot))]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        self._slot = self._pool.allocate_zeroed()
        [n_past] = saved[0].view(np.int64)
        for state, saved_state in zip(self._pool.layer_states(self._slot), saved[1:], strict=True):
            state[:] = saved_state
        self._n_past = int(n_past)
