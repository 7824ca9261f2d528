"""Threads that read matrices of experts from the storage, in the order in which they were asked for."""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from localinfer.gguf.direct_file import DirectFile


@dataclass(eq=False, slots=True)
class Entry:
    """A slot of an expert, of which `pending` reads are not done; they are skipped if they have not begun and it is no
    longer `wanted`. It is `in_use` when kernels have its addresses. `error` is what a read has raised."""

    slot: int
    pending: int = 0
    wanted: bool = True
    in_use: bool = False
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A range of bytes of a file that is read to memory for an entry."""

    entry: Entry
    file: DirectFile
    memory: memoryview
    start: int
    n_bytes: int


class ReadQueue:
    """Reads in `threads` threads. One other thread uses the queue."""

    def __init__(self, threads: int) -> None:
        self._lock, self._active, self._since = threading.Lock(), 0, 0.0
        self._bytes_read, self._seconds = 0, 0.0  # since the last `take_totals`
        self._reads, self._done = SimpleQueue[Read | None](), SimpleQueue[None]()  # the second wakes who waits
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"localinfer-read-{number}")
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, entry: Entry, reads: Sequence[Read]) -> None:
        """Ask for all reads of an entry."""
        entry.pending = len(reads)
        for read in reads:
            self._reads.put(read)

    def wait(self, entry: Entry) -> None:
        """Wait for all reads of an entry. Raises what one of them has raised."""
        while entry.pending:
            self._done.get()
        if entry.error is not None:
            raise entry.error

    def forget_finished(self) -> None:
        """Discard the signals of reads that nobody has waited for."""
        clear(self._done)

    def take_totals(self) -> tuple[int, float]:
        """Return the bytes that were read since the last call, and the seconds in which there was at least one read in
        progress."""
        with self._lock:
            totals = self._bytes_read, self._seconds
            self._bytes_read, self._seconds, self._since = 0, 0.0, time.perf_counter()
            return totals

    def close(self) -> None:
        """Skip the reads that have not begun, and end the threads."""
        clear(self._reads)
        for _ in self._threads:
            self._reads.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (read := self._reads.get()) is not None:
            if read.entry.wanted:
                try:
                    self._read(read)
                except Exception as error:  # raised in the thread that waits for the entry
                    read.entry.error = error
            with self._lock:
                read.entry.pending -= 1
            self._done.put(None)

    def _read(self, read: Read) -> None:
        with self._lock:
            self._since = self._since if self._active else time.perf_counter()
            self._active += 1
        try:
            read.file.read(read.memory, read.start, read.n_bytes)
        finally:
            with self._lock:
                self._active -= 1
                self._bytes_read += read.n_bytes
                if not self._active:
                    self._seconds += time.perf_counter() - self._since


def clear(queue: SimpleQueue[Any]) -> None:
    """Remove all items of a queue."""
    with contextlib.suppress(Empty):
        while True:
            queue.get_nowait()
