"""The page table of a sequence: the page of each logical page of its ring buffer, and the entries of positions."""

from collections.abc import Iterator, Sequence

import numpy as np

from localinfer.graph.cache.held_pages import HeldRingPages
from localinfer.graph.cache.ring_buffer import RingBuffer, as_slice
from localinfer.graph.cache.sequence_cache import Bytes
from localinfer.kernels.layout import PAGE_SIZE


class PageTable:
    """The pages of a sequence, allocated in order. `numbers` are the page numbers as the kernels read them."""

    def __init__(self, ring: RingBuffer) -> None:
        self._ring = ring
        self._pages: list[int] = []
        self.numbers = np.zeros(ring.capacity // PAGE_SIZE, np.int32)
        self.address = self.numbers.ctypes.data
        ring.tables.add(self)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the page numbers."""
        return iter(self._pages)

    def __len__(self) -> int:
        """Return the number of allocated pages."""
        return len(self._pages)

    def fork(self) -> "PageTable":
        """Return a table of the same pages, which are then shared."""
        other = PageTable(self._ring)
        for page in self._pages:
            self._ring.pages.retain(page)
        other._pages = self._pages.copy()
        other.numbers[:] = self.numbers
        return other

    def writable_page(self, logical_page: int) -> int:
        """Return the page of a logical page: a new one if there is none, or a copy if it is shared. Raises
        OutOfPagesError."""
        while logical_page >= len(self._pages):
            page = self._ring.allocate_page()
            self.numbers[len(self._pages)] = page
            self._pages.append(page)
        page = self._pages[logical_page]
        if self._ring.pages.is_shared(page):
            self._pages[logical_page] = self.numbers[logical_page] = self._ring.copy_page(page)
            self._ring.pages.release(page)
        return self._pages[logical_page]

    def truncate(self, n_pages: int) -> None:
        """Release all pages but the first `n_pages`."""
        released = self._pages[n_pages:]
        # Before releasing: an interrupt must not leave a page with two owners and one reference.
        del self._pages[n_pages:]
        for page in released:
            self._ring.pages.release(page)

    # --- entries ---

    def contiguous_runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of positions with contiguous entries, in writable pages: the offset of the run, its length and its
        first entry. Yields none if positions have no entries. Raises OutOfPagesError."""
        token = 0
        while token < count and self._ring.ring_entries:
            entry, n_contiguous = self._ring.entry_of(first + token)
            logical_page, offset = divmod(entry, PAGE_SIZE)
            n = min(n_contiguous, count - token, PAGE_SIZE - offset)
            yield token, n, self.writable_page(logical_page) * PAGE_SIZE + offset
            token += n

    def compressed_runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the compressed runs of positions that end within these, in writable pages: the number of the first one,
        their number and its entry. Raises OutOfPagesError."""
        ring = self._ring
        if not ring.compressed_entries:
            return
        run, end = (position // ring.visible.compression for position in (first, first + count))
        while run < end:
            page, offset = divmod(run, PAGE_SIZE)
            n = min(end - run, PAGE_SIZE - offset)
            yield run, n, self.writable_page(ring.compressed_page + page) * PAGE_SIZE + offset
            run += n

    # --- contents ---

    def copies(self, first: int, end: int) -> list[Bytes]:
        """Return copies of the pages `first` .. `end` - 1: the positions of the entries, and keys and values."""
        return list(self._ring.copies(self._pages[first:end]))

    def hold(self, first: int, end: int) -> HeldRingPages:
        """Hold the pages `first` .. `end` - 1, which are full, so that they can be copied later."""
        return HeldRingPages(self._ring, self._pages[first:end])

    def load(self, first: int, end: int, saved: Sequence[Bytes]) -> None:
        """Load what `copies` returned for these pages. Raises ValueError if it does not fit, and OutOfPagesError."""
        if not 0 <= first <= end <= len(self.numbers):
            raise ValueError(f"{end} pages are in use, of {len(self.numbers)}")
        if end:
            self.writable_page(end - 1)
        pages = as_slice(self._pages[first:end])
        positions, *arrays = saved
        self._ring.page_positions[pages] = positions.view(np.int32).reshape(-1, PAGE_SIZE)
        for array, saved_array in zip(self._ring.cache_arrays, arrays, strict=True):
            array[:, pages] = saved_array.reshape(len(array), end - first, -1)
