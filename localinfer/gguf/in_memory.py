"""A model read into process memory instead of being mapped: `--no-mmap`.

The weights lie in huge pages (`localinfer.gguf.huge_pages`) where the system has them, also if the file system gives
none to mapped files. They are read faster: fewer TLB misses, and hardware prefetch seldom stops at a page boundary. The
cost is memory for the whole file that no other process can share, and reading all of it before the first token. Later
changes of the file have no effect.
"""

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf import file_descriptors
from localinfer.gguf.huge_pages import allocate_huge_pages
from localinfer.gguf.mapped_file import MappedFile
from localinfer.gguf.overrides import override_metadata
from localinfer.gguf.reader import GGUF, open_gguf

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in total

STAGE = "read"
READ_BYTES = 16 << 20  # bytes per read of a thread: whole huge pages


def read_into_memory(f: GGUF, threads: int, progress: Progress | None = None) -> GGUF:
    """Return the same model with all bytes in memory. The files are read and validated again.

    Raises NotEnoughMemoryError, LocalInferError for a file that changes meanwhile, and the errors of `open_gguf`.
    """
    read = open_gguf(f.path, partial(FileInMemory, reading=_ReadProgress(threads, f.size, progress)))
    return override_metadata(read, f.overrides)


@dataclass
class _ReadProgress:
    """The settings for reading files, and the number of bytes read of `total`."""

    threads: int
    total: int
    progress: Progress | None
    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def advance(self, n_bytes: int) -> None:
        """Count `n_bytes` more as read and report the progress."""
        self.done += n_bytes
        if self.progress:
            self.progress(STAGE, min(self.done, self.total), self.total)


class FileInMemory(MappedFile):
    """A `MappedFile` whose `map` is process memory that holds a copy of the file."""

    in_memory = True

    def __init__(self, path: Path, reading: _ReadProgress) -> None:
        self._reading = reading
        super().__init__(path)
        self.bytes.flags.writeable = False

    def check_unchanged(self) -> None:
        """Do nothing: the file is not needed any more."""

    def window(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return `n_bytes` bytes from offset `start`."""
        return self.bytes[start : start + n_bytes]

    def _map(self) -> mmap.mmap:
        try:
            memory = allocate_huge_pages(self.size)
        except (OSError, ValueError, OverflowError):
            raise self.error(
                "", f"not enough memory for its {self.size / 2**30:.1f} GiB", NotEnoughMemoryError
            ) from None
        with ThreadPoolExecutor(self._reading.threads) as pool:
            try:
                for n_bytes in pool.map(partial(self._fill, memoryview(memory)), range(0, self.size, READ_BYTES)):
                    self._reading.advance(n_bytes)
            except BaseException:  # also Ctrl-C: do not wait for the remaining reads
                self._reading.stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        super().check_unchanged()
        return memory

    def _fill(self, memory: memoryview, start: int) -> int:
        """Read the chunk that begins at `start` and return its size in bytes."""
        end = min(start + READ_BYTES, self.size)
        at = start
        while at < end and not self._reading.stop.is_set():
            try:
                n_bytes = file_descriptors.read_into(self._descriptor, memory[at:end], at)
            except OSError as error:
                raise self.error("", f"cannot be read: {error.strerror}") from None
            if not n_bytes:
                raise self.error("", "file changed or truncated while in use")
            at += n_bytes
        return at - start
