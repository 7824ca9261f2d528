"""Reads of a file that leave no copy in the page cache, for weights that are kept in memory of the process.

A model larger than memory would otherwise fill the page cache with weights that are already elsewhere, and the system
would drop the pages that are needed.
"""

import mmap
import os
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from localinfer.gguf import file_descriptors
from localinfer.gguf.huge_pages import HUGE_PAGE, allocate_huge_pages
from localinfer.gguf.mapped_file import MappedFile

PAGE = 4096  # direct reads begin and end at multiples of it, in the file and in memory
READERS = 8  # threads: reads that a storage device processes at the same time
MEASURED_BYTES, MEASURED_SECONDS, MAX_MEASURED = 1 << 20, 0.3, 4096  # of a read, of a measurement, different reads
F_NOCACHE = 48  # fcntl of macOS


def padded_size(n_bytes: int) -> int:
    """Return the memory that a read of `n_bytes` bytes from any offset needs: whole pages."""
    return align_up(n_bytes) + PAGE


def align_up(n_bytes: int) -> int:
    """Return the next multiple of PAGE."""
    return -(-n_bytes // PAGE) * PAGE


class DirectFile:
    """A mapped file that is read past the page cache: with O_DIRECT where the system and the file system have it.
    Otherwise, what was read is dropped from the page cache afterwards."""

    def __init__(self, file: MappedFile) -> None:
        """Raises LocalInferError if the file has changed since it was mapped."""
        self.file, self.is_direct = file, True
        self._descriptor = self._open_direct()
        if self._descriptor < 0:
            self._descriptor, self.is_direct = file.reopen(), False
        weakref.finalize(self, os.close, self._descriptor)

    def _open_direct(self) -> int:
        """Return a descriptor for direct reads, or -1. Some file systems refuse only the first read."""
        if sys.platform == "darwin":
            import fcntl

            descriptor = self.file.reopen()
            fcntl.fcntl(descriptor, F_NOCACHE, 1)
            return descriptor
        try:
            descriptor = self.file.reopen(os.O_DIRECT) if hasattr(os, "O_DIRECT") else -1
        except OSError:
            return -1
        try:
            if descriptor >= 0:
                file_descriptors.read_into(descriptor, memoryview(mmap.mmap(-1, PAGE)), 0)
        except OSError:
            os.close(descriptor)
            return -1
        return descriptor

    def read(self, memory: memoryview, start: int, n_bytes: int) -> None:
        """Read the bytes from offset `start` on to `memory`, which begins at a page and has the
        padded size (`padded_size`). The first byte is written to memory[start % PAGE].

        Raises LocalInferError if they cannot be read.
        """
        first, end = start - start % PAGE, start + n_bytes
        at = first
        while at < end:
            try:
                done = file_descriptors.read_into(self._descriptor, memory[at - first : align_up(end) - first], at)
            except OSError as error:
                raise self.file.error("", f"cannot be read: {error.strerror}") from None
            if not done or (done % PAGE and at + done < end):
                raise self.file.error("", "file changed or truncated while in use")
            at += done
        if not self.is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, first, end - first, os.POSIX_FADV_DONTNEED)


def measure_read_bandwidth(files: Sequence[MappedFile]) -> float:
    """Return how many bytes per second the storage reads of some files, with READERS reads at a time."""
    distance = max(1, sum(file.size for file in files) // (MAX_MEASURED * MEASURED_BYTES)) * MEASURED_BYTES
    pieces = [
        (direct, offset, min(MEASURED_BYTES, file.size - offset))
        for file, direct in ((file, DirectFile(file)) for file in files)
        for offset in range(0, file.size, distance)
    ]
    step = len(pieces) // 128 | 1  # reads are spread over the files, so that no device reads ahead
    memory = memoryview(allocate_huge_pages(READERS * HUGE_PAGE))  # devices write to huge pages faster
    begin = time.perf_counter()

    def read(reader: int) -> int:
        buffer, done = memory[HUGE_PAGE * reader : HUGE_PAGE * (reader + 1)], 0
        for number in count(reader, READERS):
            direct, offset, n_bytes = pieces[number * step % len(pieces)]
            direct.read(buffer, offset, n_bytes)
            done += n_bytes
            if time.perf_counter() - begin > MEASURED_SECONDS:
                break
        return done

    with ThreadPoolExecutor(READERS) as pool:
        total = sum(pool.map(read, range(READERS)))
    return total / (time.perf_counter() - begin)
