"""The page table of a sequence: the page of each logical page of its ring buffer."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.ring_buffer import EMPTY, RingBuffer, round_up_to_page
from localinfer.graph.cache.sequence_cache import Bytes, SequenceCache
from localinfer.kernels.layout import PAGE_SIZE

Positions = NDArray[np.int64]


class PageTable(SequenceCache):
    """A sequence's KV cache. Pages are allocated in order as the sequence grows."""

    def __init__(self, ring: RingBuffer) -> None:
        self._ring = ring
        self._table = np.zeros(ring.capacity // PAGE_SIZE, np.int32)
        self._address = self._table.ctypes.data
        self._pages: list[int] = []  # the allocated pages, in table order
        self._end = 0  # the end of the positions placed since the last reset
        ring.tables.add(self)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the pages of the sequence."""
        return iter(self._pages)

    def reset(self) -> None:
        self._end = 0
        self._release_after(0)

    def fork(self) -> "PageTable":
        other = PageTable(self._ring)
        for page in self._pages:
            self._ring.pages.share(page)
        other._pages, other._end = self._pages.copy(), self._end
        other._table[:] = self._table
        return other

    def reserve(self, first: int, count: int) -> None:
        for _ in self._contiguous_runs(first, count):
            pass

    def place(self, first: int, count: int, at: int = 0) -> None:
        if count == 1:
            self._place_one(first, at)
            return
        entries, positions = self._ring.entries.view(np.int32), self._ring.positions.view(np.int32)
        for token, n, entry in self._contiguous_runs(first, count):
            entries[at + token : at + token + n] = np.arange(entry, entry + n)
            positions[entry : entry + n] = np.arange(first + token, first + token + n)
            positions[entry : entry + max(0, self._ring.visible.n_masked - first - token)] = EMPTY
        self._end = max(self._end, first + count)
        self._set_visible(np.arange(first, first + count), 0, first + count, at)

    def _place_one(self, position: int, at: int) -> None:
        """Map a single token: faster than `place`, for decoding many sequences."""
        ring, (_, _, entry) = self._ring, next(self._contiguous_runs(position, 1))
        ring.entries.view(np.int32)[at] = entry
        ring.positions.view(np.int32)[entry] = EMPTY if position < ring.visible.n_masked else position
        self._end = max(self._end, position + 1)
        ring.oldest.view(np.int32)[at] = max(ring.visible.oldest(position), 0)
        ring.newest.view(np.int32)[at] = position
        ring.add_segment(at, 1, self._address, len(self._pages))

    def place_draft(self, position: int, at: int) -> None:
        self._place_one(position, at)

    def fits(self, lengths: Sequence[int]) -> bool:
        return not self._ring.sinks and self._packed_offsets(lengths)[-1] <= self._ring.capacity

    def pack(self, lengths: Sequence[int]) -> None:
        *begin, end = self._packed_offsets(lengths)
        first, own_length = np.repeat(begin, lengths), np.repeat(lengths, lengths)
        self.reset()
        self.reserve(0, end)
        at = first + np.concatenate([np.arange(length) for length in lengths])
        entries = self._table[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE
        self._ring.entries.view(np.int32)[: len(at)] = entries
        self._ring.positions.view(np.int32)[entries] = at
        self._set_visible(at, first, first + own_length, 0)

    def _packed_offsets(self, lengths: Sequence[int]) -> list[int]:
        """Return the first position of each text, and the end of the last one.

        A text spans as few attention chunks of pages as it would alone, so that sums are added in the same order.
        """
        begin, chunk, at = [], self._ring.chunk_pages * PAGE_SIZE, 0
        for length in lengths:
            at = -(-at // PAGE_SIZE) * PAGE_SIZE
            if at % chunk + length > chunk:
                at = -(-at // chunk) * chunk
            begin.append(at)
            at += length
        return [*begin, at]

    def _set_visible(self, positions: Positions, begin: Positions | int, end: Positions | int, at: int) -> None:
        """Set the positions that the tokens from `at` on attend to, within their texts `begin` .. `end` - 1."""
        ring, tokens = self._ring, slice(at, at + len(positions))
        lookahead = 0 if ring.visible.causal else ring.visible.window // 2
        ring.oldest.view(np.int32)[tokens] = np.maximum(ring.visible.oldest(positions), begin)
        ring.newest.view(np.int32)[tokens] = np.minimum(positions + lookahead, end - 1)
        ring.add_segment(at, len(positions), self._address, len(self._pages))

    def _contiguous_runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of positions with contiguous entries: the offset of the run, its length and its first entry, in
        pages that are not shared."""
        token = 0
        while token < count:
            entry, n_contiguous = self._ring.entry_of(first + token)
            logical_page, offset = divmod(entry, PAGE_SIZE)
            n = min(n_contiguous, count - token, PAGE_SIZE - offset)
            yield token, n, self._private_page(logical_page) * PAGE_SIZE + offset
            token += n

    def _private_page(self, logical_page: int) -> int:
        """Return the page of a logical page, copied first if it is shared. Raises OutOfPagesError."""
        while logical_page >= len(self._pages):
            page = self._ring.allocate_page()
            self._table[len(self._pages)] = page
            self._pages.append(page)
        page = self._pages[logical_page]
        if self._ring.pages.is_shared(page):
            self._pages[logical_page] = self._table[logical_page] = self._ring.copy_page(page)
            self._ring.pages.release(page)
        return self._pages[logical_page]

    def commit(self, n_past: int) -> None:
        """Do nothing: `place` has already written the positions."""

    def rewind_target(self, n: int) -> int:
        ring = self._ring
        oldest_needed = max(ring.sinks, ring.visible.oldest(n))
        end = ring.sinks + round_up_to_page(self._end - ring.sinks) if ring.anchored else self._end
        oldest_held = end - ring.ring_entries if self._has_wrapped else 0
        return n if oldest_needed >= oldest_held else 0

    def rewind(self, n: int) -> None:
        if not self._has_wrapped:  # otherwise, pages also hold positions before n
            self._end = n
            self._release_after((self._ring.entry_of(n - 1)[0] // PAGE_SIZE + 1) if n else 0)

    @property
    def _has_wrapped(self) -> bool:
        """Whether ring buffer entries have been reused."""
        return self._end - self._ring.sinks > self._ring.ring_entries

    def _release_after(self, n_pages: int) -> None:
        """Release all pages but the first ones."""
        released = self._pages[n_pages:]
        # Before releasing: an interrupt must not leave a page with two owners and one reference.
        del self._pages[n_pages:]
        for page in released:
            self._ring.pages.release(page)

    def checkpoint(self) -> None:
        """Do nothing: positions stay cached until their entries are reused."""

    def save(self) -> Sequence[Bytes]:
        """Return the numbers of positions and pages, the positions of the entries, and the keys and values of the
        pages."""
        numbers = np.array([self._end, len(self._pages)], np.int64).view(np.uint8)
        positions = self._ring.positions.view(np.int32).reshape(-1, PAGE_SIZE)[self._pages]
        return [numbers, positions.view(np.uint8), *(part[:, self._pages] for part in self._ring.parts())]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        end, n_pages = (int(number) for number in saved[0].view(np.int64))
        if not 0 <= n_pages * PAGE_SIZE <= self._ring.capacity:
            raise ValueError(f"{n_pages} pages are in use, of {self._ring.capacity // PAGE_SIZE}")
        if n_pages:
            self._private_page(n_pages - 1)
        self._end = end
        self._ring.positions.view(np.int32).reshape(-1, PAGE_SIZE)[self._pages] = (
            saved[1].view(np.int32).reshape(-1, PAGE_SIZE)
        )
        for part, saved_part in zip(self._ring.parts(), saved[2:], strict=True):
            part[:, self._pages] = saved_part.reshape(len(part), n_pages, -1)
