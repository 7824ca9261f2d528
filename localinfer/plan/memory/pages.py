"""Pages: equal pieces of memory that sequences share, counted by reference and copied before they are written to."""

from collections.abc import Iterable
from heapq import heappop, heappush


class NoRoom(Exception):
    """All pages are in use. Whoever makes a sequence longer has to forget another one first."""


class Pages:
    """Numbers of pages. The lowest that is free is taken first: so a sequence that is alone lies in one stretch."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))  # a heap
        self._owners = [0] * count

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def free(self) -> int:
        """How many nobody has."""
        return len(self._free)

    def take(self) -> int:
        """A page of one's own; NoRoom if there is none."""
        if not self._free:
            raise NoRoom
        page = heappop(self._free)
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more has it."""
        self._owners[page] += 1

    def is_shared(self, page: int) -> bool:
        """Whether somebody else has it, too: then nobody may write to it."""
        return self._owners[page] > 1

    def give_back(self, page: int) -> None:
        """One has it no more."""
        self._owners[page] -= 1
        if not self._owners[page]:
            heappush(self._free, page)

    def recount(self, owned: Iterable[int]) -> None:
        """These are in use, each as often as it is named, and no others: a Ctrl-C may have lost some."""
        self._owners = [0] * len(self._owners)
        for page in owned:
            self._owners[page] += 1
        self._free = [page for page, owners in enumerate(self._owners) if not owners]
