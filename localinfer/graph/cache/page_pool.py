"""Pages: memory blocks of equal size that sequences share by reference counting and copy on write."""

from collections.abc import Iterable
from heapq import heappop, heappush


class OutOfPagesError(Exception):
    """All pages are in use. The engine then evicts a cached sequence, which the scheduler chooses, and tries again."""


class PagePool:
    """Allocates page numbers. The lowest free page is allocated first, so the pages of a single sequence are
    contiguous."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))  # a heap
        self._ref_counts = [0] * count

    def __len__(self) -> int:
        return len(self._ref_counts)

    @property
    def n_free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def allocate(self) -> int:
        """Return a free page. Raises OutOfPagesError if there is none."""
        if not self._free:
            raise OutOfPagesError
        page = heappop(self._free)
        self._ref_counts[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a reference to a page."""
        self._ref_counts[page] += 1

    def is_shared(self, page: int) -> bool:
        """Return whether a page has several references and must not be written to."""
        return self._ref_counts[page] > 1

    def release(self, page: int) -> None:
        """Remove a reference to a page."""
        self._ref_counts[page] -= 1
        if not self._ref_counts[page]:
            heappush(self._free, page)

    def rebuild_ref_counts(self, owned: Iterable[int]) -> None:
        """Set the reference counts from the pages in use, each as often as it is referenced: an interrupt may have lost
        some."""
        self._ref_counts = [0] * len(self._ref_counts)
        for page in owned:
            self._ref_counts[page] += 1
        self._free = [page for page, owners in enumerate(self._ref_counts) if not owners]
