"""The KV cache of a sequence: the positions that its ring buffer holds, in pages that may be shared."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.page_table import PageTable
from localinfer.graph.cache.ring_buffer import EMPTY, RingBuffer, round_up_to_page
from localinfer.graph.cache.sequence_cache import Bytes, SequenceCache
from localinfer.kernels.layout import PAGE_SIZE

Positions = NDArray[np.int64]
NO_ENTRY = -1  # of a token that completes no compressed run


class KVCache(SequenceCache):
    """A sequence's KV cache for the layers of a ring buffer. Its pages are in `page_table`."""

    def __init__(self, ring: RingBuffer, page_table: PageTable | None = None) -> None:
        self._ring, self.page_table = ring, PageTable(ring) if page_table is None else page_table
        self._end = 0  # the largest position since the last reset, plus 1

    def reset(self) -> None:
        self._end = 0
        self.page_table.truncate(0)

    def fork(self) -> "KVCache":
        other = KVCache(self._ring, self.page_table.fork())
        other._end = self._end
        return other

    def reserve(self, first: int, count: int) -> None:
        for _ in chain(self.page_table.contiguous_runs(first, count), self.page_table.compressed_runs(first, count)):
            pass

    def set_inputs(self, first: int, count: int, row: int = 0) -> None:
        if count == 1:
            self.set_draft_inputs(first, row)
            return
        entries, positions = self._ring.entries.view(np.int32), self._ring.positions.view(np.int32)
        for token, n, entry in self.page_table.contiguous_runs(first, count):
            entries[row + token : row + token + n] = np.arange(entry, entry + n)
            positions[entry : entry + n] = np.arange(first + token, first + token + n)
            positions[entry : entry + max(0, self._ring.visible.n_masked - first - token)] = EMPTY
        self._set_compressed(first, count, row)
        self._end = max(self._end, first + count)
        self._set_visible(np.arange(first, first + count), 0, first + count, row)

    def set_bidirectional(self, start: int, end: int, row: int) -> None:
        """Let the positions `start` .. `end` - 1, whose tokens begin at `row` of the next batch, attend to each other.
        """
        if not self._ring.visible.causal_media:
            self._ring.newest.view(np.int32)[row : row + end - start] = end - 1

    def hide_before(self, first: int, count: int, row: int) -> None:
        """Let the `count` tokens from `row` on of the next batch attend to no position before `first`."""
        self._ring.oldest.view(np.int32)[row : row + count] = first

    def set_draft_inputs(self, position: int, row: int) -> None:
        """Map a position, committed or not, to the token `row` of the next batch: faster than `set_inputs`, for
        decoding many sequences. Raises OutOfPagesError."""
        ring = self._ring
        for _, _, entry in self.page_table.contiguous_runs(position, 1):
            ring.entries.view(np.int32)[row] = entry
            ring.positions.view(np.int32)[entry] = EMPTY if position < ring.visible.n_masked else position
        self._set_compressed(position, 1, row)
        self._end = max(self._end, position + 1)
        self._set_visible_to_one(position, position, row)

    def set_block_inputs(self, first: int, count: int, row: int, *, causal: bool) -> None:
        """Map uncommitted positions to the tokens from `row` on of the next batch, which attend to each other, or if
        `causal` to those before them. Raises OutOfPagesError."""
        self.set_inputs(first, count, row)
        if not causal:
            self._ring.newest.view(np.int32)[row : row + count] = first + count - 1

    def set_query_inputs(self, position: int, row: int) -> None:
        """Let the token `row` of the next batch, which has this position, attend to what precedes it. It has no keys
        and values of its own."""
        self._set_visible_to_one(position, position - 1, row)

    def fits(self, lengths: Sequence[int]) -> bool:
        """Return whether texts of these lengths can be packed."""
        return not self._ring.sinks and packed_offsets(lengths, self._ring.chunk_pages)[-1] <= self._ring.capacity

    def pack(self, lengths: Sequence[int]) -> None:
        """Map a batch of independent texts of these lengths, one after another. The cache must be empty before, and is
        invalid after the batch."""
        *starts, end = packed_offsets(lengths, self._ring.chunk_pages)
        self.reset()
        self.reserve(0, end)
        start_of_token, text_length = np.repeat(starts, lengths), np.repeat(lengths, lengths)
        positions = start_of_token + np.concatenate([np.arange(length) for length in lengths])
        entries = self.page_table.numbers[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        self._ring.entries.view(np.int32)[: len(positions)] = entries
        self._ring.positions.view(np.int32)[entries] = positions
        self._set_visible(positions, start_of_token, start_of_token + text_length, 0)

    def _set_visible(self, positions: Positions, begin: Positions | int, end: Positions | int, row: int) -> None:
        """Set the positions that the tokens from `row` on attend to, within their texts `begin` .. `end` - 1."""
        ring, tokens = self._ring, slice(row, row + len(positions))
        lookahead = 0 if ring.visible.causal else ring.visible.window // 2
        ring.query_positions.view(np.int32)[tokens] = positions
        ring.oldest.view(np.int32)[tokens] = np.maximum(ring.visible.oldest(positions), begin)
        ring.newest.view(np.int32)[tokens] = np.minimum(positions + lookahead, end - 1)
        ring.add_segment(row, len(positions), self.page_table.address, len(self.page_table))

    def _set_visible_to_one(self, position: int, newest: int, row: int) -> None:
        """Set the positions up to `newest` that a single token at a position attends to: faster than `_set_visible`."""
        ring = self._ring
        ring.query_positions.view(np.int32)[row] = position
        ring.oldest.view(np.int32)[row] = max(ring.visible.oldest(position), 0)
        ring.newest.view(np.int32)[row] = newest
        ring.add_segment(row, 1, self.page_table.address, len(self.page_table))

    def _set_compressed(self, first: int, count: int, row: int) -> None:
        """Set the entries of the runs that the tokens from `row` on complete, if positions are compressed."""
        ring = self._ring
        if not ring.compressed_entries:
            return
        entries, positions = ring.compressed.view(np.int32), ring.positions.view(np.int32)
        entries[row : row + count] = NO_ENTRY
        for run, n, entry in self.page_table.compressed_runs(first, count):
            ends = ring.visible.compression * np.arange(run + 1, run + n + 1) - 1
            entries[row + ends - first] = np.arange(entry, entry + n)
            positions[entry : entry + n] = ends

    def commit(self, n_past: int) -> None:
        """Do nothing: `set_inputs` has already written the positions."""

    def rewind_target(self, n: int) -> int:
        ring = self._ring
        oldest_needed = max(ring.sinks, ring.visible.oldest(n))
        end = ring.sinks + round_up_to_page(self._end - ring.sinks) if ring.anchored else self._end
        oldest_held = end - ring.ring_entries if self._has_wrapped else 0
        return n if oldest_needed >= oldest_held else 0

    def rewind(self, n: int) -> None:
        if not self._has_wrapped:  # otherwise, pages also hold positions before n
            self._end = n
            if n and self._ring.compressed_entries:  # whose pages are the last ones
                return
            self.page_table.truncate((self._ring.entry_of(n - 1)[0] // PAGE_SIZE + 1) if n else 0)

    @property
    def _has_wrapped(self) -> bool:
        """Whether ring buffer entries have been reused."""
        return 0 < self._ring.ring_entries < self._end - self._ring.sinks

    @property
    def keeps_all_positions(self) -> bool:
        """Whether all positions stay cached, in pages that do not change once they are full."""
        return self._ring.keeps_all

    def load_pages(self, first: int, end: int, saved: Sequence[Bytes], n_past: int) -> None:
        """Load pages that were saved with the same graph behind the first `first` ones. The cache holds `n_past`
        positions when all of them are loaded.

        Several threads may load different pages if memory was reserved for all. Raises ValueError if they do not fit,
        and OutOfPagesError.
        """
        self.page_table.load(first, end, saved)
        self._end = n_past

    def save(self) -> Sequence[Bytes]:
        """Return the numbers of positions and pages, and all pages."""
        n_pages = len(self.page_table)
        return [np.array([self._end, n_pages], np.int64).view(np.uint8), *self.page_table.copies(0, n_pages)]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        numbers, *pages = saved
        n_past, n_pages = (int(number) for number in numbers.view(np.int64))
        self.load_pages(0, n_pages, pages, n_past)


def packed_offsets(lengths: Sequence[int], chunk_pages: int) -> list[int]:
    """Return the first position of each text, and the end of the last one.

    A text spans as few attention chunks of pages as it would alone, so that sums are added in the same order.
    """
    starts, chunk, end = [], chunk_pages * PAGE_SIZE, 0
    for length in lengths:
        start = round_up_to_page(end)
        if start % chunk + length > chunk:
            start = -(-start // chunk) * chunk
        starts.append(start)
        end = start + length
    return [*starts, end]
