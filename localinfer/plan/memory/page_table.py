"""A sequence's ring of cells: the page in which each of its blocks lies."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.ops.layout import BLOCK
from localinfer.plan.memory.memory import Bytes, Memory
from localinfer.plan.memory.ring import NEVER, Ring, whole_blocks

Positions = NDArray[np.int64]


class PageTable(Memory):
    """Pages are taken as the sequence grows, in the order of its blocks."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._table = np.zeros(ring.capacity // BLOCK, np.int32)
        self._address = self._table.ctypes.data
        self._pages: list[int] = []  # what the table begins with
        self._furthest = 0  # positions that were placed since it was last empty
        ring.tables.add(self)

    def __iter__(self) -> Iterator[int]:
        """The pages that it has."""
        return iter(self._pages)

    def reset(self) -> None:
        self._furthest = 0
        self._leave(0)

    def fork(self) -> "PageTable":
        other = PageTable(self._ring)
        for page in self._pages:
            self._ring.pages.share(page)
        other._pages, other._furthest = self._pages.copy(), self._furthest
        other._table[:] = self._table
        return other

    def reserve(self, first: int, count: int) -> None:
        for _ in self._stretches(first, count):
            pass

    def place(self, first: int, count: int, at: int = 0) -> None:
        if count == 1:
            self._place_one(first, at)
            return
        cells, positions = self._ring.cells.view(np.int32), self._ring.positions.view(np.int32)
        for token, n, cell in self._stretches(first, count):
            cells[at + token : at + token + n] = np.arange(cell, cell + n)
            positions[cell : cell + n] = np.arange(first + token, first + token + n)
            positions[cell : cell + max(0, self._ring.unseen - first - token)] = NEVER
        self._furthest = max(self._furthest, first + count)
        self._see(np.arange(first, first + count), 0, first + count, at)

    def _place_one(self, position: int, at: int) -> None:
        """The same of a single token: answers of many sequences ask for them, and arrays take longer to begin with."""
        ring, (_, _, cell) = self._ring, next(self._stretches(position, 1))
        ring.cells.view(np.int32)[at] = cell
        ring.positions.view(np.int32)[cell] = NEVER if position < ring.unseen else position
        self._furthest = max(self._furthest, position + 1)
        ring.oldest.view(np.int32)[at] = max(ring.oldest_seen(position), 0)
        ring.newest.view(np.int32)[at] = position
        ring.add_segment(at, 1, self._address, len(self._pages))

    def place_ahead(self, position: int, at: int) -> None:
        self._place_one(position, at)

    def fits(self, lengths: Sequence[int]) -> bool:
        return not self._ring.sinks and self._begin(lengths)[-1] <= self._ring.capacity

    def pack(self, lengths: Sequence[int]) -> None:
        *begin, end = self._begin(lengths)
        first, own = np.repeat(begin, lengths), np.repeat(lengths, lengths)
        self.reset()
        self.reserve(0, end)
        at = first + np.concatenate([np.arange(length) for length in lengths])
        cells = self._table[at // BLOCK] * BLOCK + at % BLOCK
        self._ring.cells.view(np.int32)[: len(at)] = cells
        self._ring.positions.view(np.int32)[cells] = at
        self._see(at, first, first + own, 0)

    def _begin(self, lengths: Sequence[int]) -> list[int]:
        """In which cells texts begin, and the end of the last one. A text lies in as few of attention's chunks of
        blocks as if it were alone, so that the same sums are added up in the same order."""
        begin, chunk, at = [], self._ring.chunk * BLOCK, 0
        for length in lengths:
            at = -(-at // BLOCK) * BLOCK
            if at % chunk + length > chunk:
                at = -(-at // chunk) * chunk
            begin.append(at)
            at += length
        return [*begin, at]

    def _see(self, positions: Positions, begin: Positions | int, end: Positions | int, at: int) -> None:
        """Have the tokens from `at` on of the batch see what is near enough of their texts, from `begin` to `end`."""
        ring, tokens = self._ring, slice(at, at + len(positions))
        ahead = 0 if ring.causal else ring.window // 2
        ring.oldest.view(np.int32)[tokens] = np.maximum(ring.oldest_seen(positions), begin)
        ring.newest.view(np.int32)[tokens] = np.minimum(positions + ahead, end - 1)
        ring.add_segment(at, len(positions), self._address, len(self._pages))

    def _stretches(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Positions from `first` on whose cells are neighbours: how many come before, how many these are, and the first
        cell, which nobody else has."""
        token = 0
        while token < count:
            cell, neighbours = self._ring.cell(first + token)
            block, within = divmod(cell, BLOCK)
            n = min(neighbours, count - token, BLOCK - within)
            yield token, n, self._own(block) * BLOCK + within
            token += n

    def _own(self, block: int) -> int:
        """The page of a block, which nobody else has. Raises NoRoom."""
        while block >= len(self._pages):
            page = self._ring.empty_page()
            self._table[len(self._pages)] = page
            self._pages.append(page)
        page = self._pages[block]
        if self._ring.pages.is_shared(page):
            self._pages[block] = self._table[block] = self._ring.copy_of(page)
            self._ring.pages.give_back(page)
        return self._pages[block]

    def commit(self, n_past: int) -> None:
        """Nothing to do: a cell is what was last placed in it."""

    def reach(self, n: int) -> int:
        ring = self._ring
        oldest_wanted = max(ring.sinks, ring.oldest_seen(n))
        furthest = ring.sinks + whole_blocks(self._furthest - ring.sinks) if ring.anchored else self._furthest
        oldest_held = furthest - ring.ring_cells if self._comes_round else 0
        return n if oldest_wanted >= oldest_held else 0

    def rewind(self, n: int) -> None:
        if not self._comes_round:  # otherwise pages hold positions before n, too
            self._furthest = n
            self._leave((self._ring.cell(n - 1)[0] // BLOCK + 1) if n else 0)

    @property
    def _comes_round(self) -> bool:
        """Whether cells have been used again."""
        return self._furthest - self._ring.sinks > self._ring.ring_cells

    def _leave(self, blocks: int) -> None:
        """Give back all pages but those of the first blocks."""
        left = self._pages[blocks:]
        del self._pages[blocks:]  # first: whatever interrupts this, no page has two owners that know of one
        for page in left:
            self._ring.pages.give_back(page)

    def keep(self) -> None:
        """Nothing to do: what is remembered stays for as long as its cells do."""

    def save(self) -> Sequence[Bytes]:
        """Numbers of positions and of blocks, the positions of cells, then keys and values of the blocks in use."""
        numbers = np.array([self._furthest, len(self._pages)], np.int64).view(np.uint8)
        positions = self._ring.positions.view(np.int32).reshape(-1, BLOCK)[self._pages]
        return [numbers, positions.view(np.uint8), *(part[:, self._pages] for part in self._ring.parts())]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        furthest, blocks = (int(number) for number in saved[0].view(np.int64))
        if not 0 <= blocks * BLOCK <= self._ring.capacity:
            raise ValueError(f"{blocks} blocks are in use, of {self._ring.capacity // BLOCK}")
        if blocks:
            self._own(blocks - 1)
        self._furthest = furthest
        self._ring.positions.view(np.int32).reshape(-1, BLOCK)[self._pages] = saved[1].view(np.int32).reshape(-1, BLOCK)
        for part, kept in zip(self._ring.parts(), saved[2:], strict=True):
            part[:, self._pages] = kept.reshape(len(part), blocks, -1)
