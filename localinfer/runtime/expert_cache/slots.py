"""The memory of cached experts: slots of one expert each, the least recently used of which is reused first.

A slot holds all matrices of an expert, each read with whole pages (`localinfer.gguf.direct_file`). Experts of
layers whose matrices have the same sizes share a pool of slots.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from localinfer.gguf.direct_file import padded_size
from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import map_zeroed
from localinfer.machine import untouched_memory
from localinfer.runtime.expert_cache.reads import Entry


class Expert(NamedTuple):
    """An expert of a layer."""

    layer: int
    number: int


def matrix_size(tensor: Tensor) -> int:
    """Return the bytes of one matrix of a tensor (count, n_out, n_in)."""
    return tensor.nbytes // tensor.shape[0]


def matrix_sizes(weights: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the bytes of one matrix of each tensor."""
    return tuple(map(matrix_size, weights))


def slot_bytes(sizes: Sequence[int]) -> int:
    """Return the memory of a slot for matrices of these sizes."""
    return sum(map(padded_size, sizes))


class SlotPool:
    """`count` slots for experts with matrices of these `sizes`. `on_evict` is called with each expert that leaves the
    pool. Raises MemoryError if there is no memory for them."""

    def __init__(self, sizes: Sequence[int], count: int, on_evict: Callable[[Expert], None]) -> None:
        self._starts, self._slot_bytes = [0, *accumulate(map(padded_size, sizes))], slot_bytes(sizes)
        self._array = map_zeroed(count * self._slot_bytes)
        untouched_memory.register(self._array)
        self._memory, self._address = self._array.data, self._array.ctypes.data
        self._on_evict = on_evict
        self._free = list(range(count))
        self._discarded: list[Entry] = []  # their reads are not done yet
        self.entries: OrderedDict[Expert, Entry] = OrderedDict()  # the least recently used first

    def address(self, entry: Entry, matrix: int) -> int:
        """Return the address of the memory for one of an expert's matrices."""
        return self._address + self._slot_bytes * entry.slot + self._starts[matrix]

    def memory(self, entry: Entry, matrix: int) -> memoryview:
        """Return the memory for one of an expert's matrices."""
        start = self._slot_bytes * entry.slot
        return self._memory[start + self._starts[matrix] : start + self._starts[matrix + 1]]

    def use(self, expert: Expert) -> Entry | None:
        """Return the entry of an expert, which becomes the most recently used one; None if it has none."""
        if expert in self.entries:
            self.entries.move_to_end(expert)
        return self.entries.get(expert)

    def add(self, expert: Expert, pinned: Collection[Expert]) -> Entry | None:
        """Give a slot to an expert: a free one, or that of the least recently used expert that is neither `pinned` nor
        being read. Return None if there is none."""
        slot = self._take_slot(pinned)
        if slot is None:
            return None
        self.entries[expert] = Entry(slot)
        return self.entries[expert]

    def discard(self, expert: Expert) -> None:
        """Remove an expert, and skip those of its reads that have not begun."""
        entry = self.entries.pop(expert)
        entry.wanted = False
        self._discarded.append(entry)
        self._on_evict(expert)

    def use_first(self, expert: Expert) -> None:
        """Let the slot of an expert be the first to be reused."""
        self.entries.move_to_end(expert, last=False)

    def _take_slot(self, pinned: Collection[Expert]) -> int | None:
        for entry in [each for each in self._discarded if not each.pending]:
            self._discarded.remove(entry)
            self._free.append(entry.slot)
        if self._free:
            return self._free.pop()
        for expert, entry in self.entries.items():
            if expert not in pinned and not entry.pending:
                del self.entries[expert]
                self._on_evict(expert)
                return entry.slot
        return None
