"""Pages of a sequence that are copied later, such as those that the prefix store writes after an answer."""

from collections.abc import Iterator, Sequence

from localinfer.graph.cache.ring_buffer import RingBuffer
from localinfer.graph.cache.sequence_cache import Bytes


class HeldRingPages:
    """Pages of a ring buffer that are not reused before they are copied. If the ring buffer needs their memory, it
    copies them itself. All methods are called with `ModelRunner.page_table_lock` held.
    """

    def __init__(self, ring: RingBuffer, pages: Sequence[int]) -> None:
        self._ring, self._pages, self._copies = ring, list(pages), list[Bytes]()
        self.nbytes = ring.pages_nbytes(len(pages))
        for page in pages:
            ring.pages.retain(page)
        ring.tables.add(self)
        ring.held.add(self)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers of the pages that are still held."""
        return iter(self._pages)

    def copy(self) -> Sequence[Bytes]:
        if self._pages:
            self._copies = list(self._ring.copies(self._pages))
            released, self._pages = self._pages, []
            self._ring.held.discard(self)
            for page in released:
                self._ring.pages.release(page)
        return self._copies
