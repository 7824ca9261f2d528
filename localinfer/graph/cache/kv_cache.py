"""The KV cache of a sequence: the positions that its ring buffer holds, in pages that may be shared."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.held_pages import HeldRingPages
from localinfer.graph.cache.page_table import PageTable
from localinfer.graph.cache.ring_buffer import EMPTY, RingBuffer, as_slice, round_up_to_page
from localinfer.graph.cache.sequence_cache import Bytes, HeldPages, SequenceCache
from localinfer.kernels.layout import PAGE_SIZE

Positions = NDArray[np.int64]
NO_ENTRY = -1  # of a token that completes no compressed run


class KVCache(SequenceCache):
    """A sequence's KV cache for the layers of a ring buffer."""

    def __init__(self, ring: RingBuffer, page_table: PageTable | None = None) -> None:
        self._ring = ring
        self._page_table = PageTable(ring) if page_table is None else page_table
        self._end = 0  # the largest position since the last reset, plus 1

    def reset(self) -> None:
        self._end = 0
        self._page_table.truncate(0)

    def fork(self) -> "KVCache":
        other = KVCache(self._ring, self._page_table.fork())
        other._end = self._end
        return other

    def reserve(self, first: int, count: int) -> None:
        for _ in chain(self._contiguous_runs(first, count), self._compressed_runs(first, count)):
            pass

    def set_inputs(self, first: int, count: int, row: int = 0) -> None:
        if count == 1:
            self.set_draft_inputs(first, row)
            return
        entries, positions = self._ring.entries.view(np.int32), self._ring.positions.view(np.int32)
        for token, n, entry in self._contiguous_runs(first, count):
            entries[row + token : row + token + n] = np.arange(entry, entry + n)
            positions[entry : entry + n] = np.arange(first + token, first + token + n)
            positions[entry : entry + max(0, self._ring.visible.n_masked - first - token)] = EMPTY
        self._set_compressed(first, count, row)
        self._end = max(self._end, first + count)
        self._set_visible(np.arange(first, first + count), 0, first + count, row)

    def set_bidirectional(self, start: int, end: int, row: int) -> None:
        if not self._ring.visible.causal_media:
            self._ring.newest.view(np.int32)[row : row + end - start] = end - 1

    def hide_before(self, first: int, count: int, row: int) -> None:
        self._ring.oldest.view(np.int32)[row : row + count] = first

    def set_draft_inputs(self, position: int, row: int) -> None:
        """Set the inputs of a single token, a draft or not: faster than `set_inputs`, for decoding many sequences."""
        ring = self._ring
        for _, _, entry in self._contiguous_runs(position, 1):
            ring.entries.view(np.int32)[row] = entry
            ring.positions.view(np.int32)[entry] = EMPTY if position < ring.visible.n_masked else position
        self._set_compressed(position, 1, row)
        self._end = max(self._end, position + 1)
        self._set_visible_to_one(position, position, row)

    def set_block_inputs(self, first: int, count: int, row: int, *, causal: bool) -> None:
        self.set_inputs(first, count, row)
        if not causal:
            self._ring.newest.view(np.int32)[row : row + count] = first + count - 1

    def set_query_inputs(self, position: int, row: int) -> None:
        self._set_visible_to_one(position, position - 1, row)

    def fits(self, lengths: Sequence[int]) -> bool:
        return not self._ring.sinks and packed_offsets(lengths, self._ring.chunk_pages)[-1] <= self._ring.capacity

    def pack(self, lengths: Sequence[int]) -> None:
        *starts, end = packed_offsets(lengths, self._ring.chunk_pages)
        self.reset()
        self.reserve(0, end)
        start_of_token, text_length = np.repeat(starts, lengths), np.repeat(lengths, lengths)
        positions = start_of_token + np.concatenate([np.arange(length) for length in lengths])
        entries = self._page_table.numbers[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
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
        ring.add_segment(row, len(positions), self._page_table.address, len(self._page_table))

    def _set_visible_to_one(self, position: int, newest: int, row: int) -> None:
        """Set the positions up to `newest` that a single token at a position attends to: faster than `_set_visible`."""
        ring = self._ring
        ring.query_positions.view(np.int32)[row] = position
        ring.oldest.view(np.int32)[row] = max(ring.visible.oldest(position), 0)
        ring.newest.view(np.int32)[row] = newest
        ring.add_segment(row, 1, self._page_table.address, len(self._page_table))

    def _contiguous_runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of positions with contiguous entries, in writable pages: the offset of the run, its length and its
        first entry. Yields none if positions have no entries. Raises OutOfPagesError."""
        token = 0
        while token < count and self._ring.ring_entries:
            entry, n_contiguous = self._ring.entry_of(first + token)
            logical_page, offset = divmod(entry, PAGE_SIZE)
            n = min(n_contiguous, count - token, PAGE_SIZE - offset)
            yield token, n, self._page_table.writable_page(logical_page) * PAGE_SIZE + offset
            token += n

    def _set_compressed(self, first: int, count: int, row: int) -> None:
        """Set the entries of the runs that the tokens from `row` on complete, if positions are compressed."""
        ring = self._ring
        if not ring.compressed_entries:
            return
        entries, positions = ring.compressed.view(np.int32), ring.positions.view(np.int32)
        entries[row : row + count] = NO_ENTRY
        for run, n, entry in self._compressed_runs(first, count):
            ends = ring.visible.compression * np.arange(run + 1, run + n + 1) - 1
            entries[row + ends - first] = np.arange(entry, entry + n)
            positions[entry : entry + n] = ends

    def _compressed_runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the compressed runs of positions that end within these, in writable pages: the number of the first one,
        their number and its entry. Raises OutOfPagesError."""
        ring = self._ring
        if not ring.compressed_entries:
            return
        run, end = (position // ring.visible.compression for position in (first, first + count))
        while run < end:
            page, offset = divmod(run, PAGE_SIZE)
            n = min(end - run, PAGE_SIZE - offset)
            yield run, n, self._page_table.writable_page(ring.compressed_page + page) * PAGE_SIZE + offset
            run += n

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
            self._page_table.truncate((self._ring.entry_of(n - 1)[0] // PAGE_SIZE + 1) if n else 0)

    @property
    def _has_wrapped(self) -> bool:
        """Whether ring buffer entries have been reused."""
        return 0 < self._ring.ring_entries < self._end - self._ring.sinks

    def checkpoint(self) -> None:
        """Do nothing: positions stay cached until their entries are reused."""

    @property
    def keeps_all_positions(self) -> bool:  # type: ignore[override] # a constant of other caches
        return self._ring.keeps_all

    def save_pages(self, first: int, end: int) -> Sequence[Bytes]:
        """Return the positions of the entries, and the keys and values of the pages."""
        return list(self._ring.copies(list(self._page_table)[first:end]))

    def hold_pages(self, first: int, end: int) -> HeldPages:
        return HeldRingPages(self._ring, list(self._page_table)[first:end])

    def load_pages(self, first: int, end: int, saved: Sequence[Bytes], n_past: int) -> None:
        if not 0 <= first <= end <= self._ring.capacity // PAGE_SIZE:
            raise ValueError(f"{end} pages are in use, of {self._ring.capacity // PAGE_SIZE}")
        if end:
            self._page_table.writable_page(end - 1)
        self._end, pages = n_past, as_slice(list(self._page_table)[first:end])
        positions, *arrays = saved
        self._ring.page_positions[pages] = positions.view(np.int32).reshape(-1, PAGE_SIZE)
        for array, saved_array in zip(self._ring.cache_arrays, arrays, strict=True):
            array[:, pages] = saved_array.reshape(len(array), end - first, -1)

    def save(self) -> Sequence[Bytes]:
        """Return the numbers of positions and pages, and all pages."""
        n_pages = len(self._page_table)
        return [np.array([self._end, n_pages], np.int64).view(np.uint8), *self.save_pages(0, n_pages)]

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
