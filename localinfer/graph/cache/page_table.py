"""The page table of a sequence: the page of each logical page of its ring buffer."""

from collections.abc import Iterator

import numpy as np

from localinfer.graph.cache.ring_buffer import RingBuffer
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
