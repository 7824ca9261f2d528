"""What the cores of a simulated machine share: cache lines, and the memory bus."""

import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Latencies(NamedTuple):
    """Seconds that cores need to access a cache line of the threads' synchronization variables.

    A store that a thread on another core waits for is two transfers: the store invalidates the other core's copy, and
    that core reads the line again. Two Zen 5 cores took 160 ns for it.
    """

    local: float = 6e-9  # an atomic operation on a line in the core's own cache
    transfer: float = 80e-9  # a line that another core has written, or has a copy of
    next_reader: float = 10e-9  # between the transfers of a line to cores that read it at the same time


@dataclass(slots=True)
class CacheLine:
    """A cache line with an atomic variable. Accesses that move it between cores happen one after the other."""

    latencies: Latencies
    value: int = 0
    holders: set[int] = field(default_factory=set)  # the cores with a valid copy
    free_at: float = 0.0

    def read(self, core: int, now: float) -> float:
        """Return the time at which a core that reads the line at `now` has its value."""
        if core in self.holders:
            return now + self.latencies.local
        begin = max(now, self.free_at)
        self.free_at = begin + self.latencies.next_reader
        self.holders.add(core)
        return begin + self.latencies.transfer

    def write(self, core: int, now: float) -> float:
        """Return the time at which a core that writes the line at `now` has done so; other copies become invalid."""
        is_own = self.holders <= {core}
        self.free_at = max(now, self.free_at) + (self.latencies.local if is_own else self.latencies.transfer)
        self.holders = {core}
        return self.free_at


@dataclass(slots=True)
class MemoryBus:
    """A memory bandwidth in bytes per second that the running chunks share.

    If they want to read more, all of them slow down by the same factor. `clock` is the time that has passed for chunks
    that read memory: it stands still as far as they are slowed down. So a chunk ends when the clock shows its end.
    """

    bandwidth: float = math.inf
    wanted: float = 0.0  # bytes per second of all running chunks, if nothing slowed them down
    clock: float = 0.0
    now: float = 0.0
    _ends: list[tuple[float, int, float]] = field(default_factory=list)  # on the clock; thread; bytes per second

    @property
    def pace(self) -> float:
        """The share of their speed that chunks get."""
        return min(1.0, self.bandwidth / self.wanted) if self.wanted > 0 else 1.0

    def start(self, thread: int, seconds: float, rate: float, now: float) -> None:
        """Start a chunk that would take `seconds` and read `rate` bytes per second with the bus to itself."""
        self._advance(now)
        heapq.heappush(self._ends, (self.clock + seconds, thread, rate))
        self.wanted += rate

    def next_end(self) -> float:
        """Return the time at which the next chunk ends; infinity if none is running."""
        return self.now + (self._ends[0][0] - self.clock) / self.pace if self._ends else math.inf

    def finish(self) -> tuple[float, int]:
        """End the next chunk. Return the time, and its thread."""
        end = self.next_end()
        self._advance(end)
        _, thread, rate = heapq.heappop(self._ends)
        self.wanted = self.wanted - rate if self._ends else 0.0
        return end, thread

    def _advance(self, now: float) -> None:
        self.clock += (now - self.now) * self.pace
        self.now = now
