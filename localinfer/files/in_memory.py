"""A model read into memory of the process's own: what --no-mmap asks for.

An answer reads all weights for each token. Mapped, these lie in the system's page cache, in pages of 4 KiB; here they
lie in huge pages where the system has them, of which processors read faster: there are fewer addresses to translate,
and what they fetch ahead seldom ends at a page. It costs room for the whole file, which nobody else can share, and
reading all of it before the first token. What becomes of the file afterwards makes no difference.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import NotEnoughMemory
from localinfer.files.gguf import GGUF, open_gguf
from localinfer.files.mapped import MappedFile

Progress = Callable[[str, int, int], None]  # stage, bytes that are done, bytes in all

STAGE = "read"
PIECE = 16 << 20  # bytes that a thread reads at a time: whole huge pages


def read_into_memory(f: GGUF, threads: int, progress: Progress | None = None) -> GGUF:
    """The same model, all of its bytes in memory; read, and checked, once more.

    Raises NotEnoughMemory, LocalInferError for a file that changes meanwhile, and what `open_gguf` raises.
    """
    return open_gguf(f.path, partial(FileInMemory, reading=_Reading(threads, f.size, progress)))


@dataclass
class _Reading:
    """How files are read, and how many bytes of `total` have been."""

    threads: int
    total: int
    progress: Progress | None
    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def tell(self, n_bytes: int) -> None:
        """So many more have been read."""
        self.done += n_bytes
        if self.progress:
            self.progress(STAGE, min(self.done, self.total), self.total)


class FileInMemory(MappedFile):
    """A `MappedFile` whose `map` is memory that the file was read into: there it stays as it was."""

    in_memory = True

    def __init__(self, path: Path, reading: _Reading) -> None:
        self._reading, self._seeking = reading, threading.Lock()
        super().__init__(path)
        self.bytes.flags.writeable = False

    def check_unchanged(self) -> None:
        """Nothing of the file is needed any more."""

    def window(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        return self.bytes[start : start + n_bytes]

    def _map(self) -> mmap.mmap:
        try:
            memory = own_memory(self.size)
        except (OSError, ValueError, OverflowError):
            raise self.error("", f"there is no room for its {self.size / 2**30:.1f} GiB", NotEnoughMemory) from None
        with ThreadPoolExecutor(self._reading.threads) as pool:
            try:
                for n_bytes in pool.map(partial(self._fill, memoryview(memory)), range(0, self.size, PIECE)):
                    self._reading.tell(n_bytes)
            except BaseException:  # Ctrl-C, too: nobody shall wait for the rest
                self._reading.stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        super().check_unchanged()
        return memory

    def _fill(self, memory: memoryview, start: int) -> int:
        """Read the piece that begins at `start`; how many bytes it has."""
        end = min(start + PIECE, self.size)
        at = start
        while at < end and not self._reading.stop.is_set():
            try:
                n_bytes = self._read(memory[at:end], at)
            except OSError as error:
                raise self.error("", f"cannot be read: {error.strerror}") from None
            if not n_bytes:
                raise self.error("", "file changed or truncated while in use")
            at += n_bytes
        return at - start

    def _read(self, memory: memoryview, at: int) -> int:
        """Fill memory with what the file has from `at` on, or a part of it with some of that; how many bytes."""
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [memory], at)
        with self._seeking:  # Windows has one place in a file that all threads read at
            os.lseek(self._descriptor, at, os.SEEK_SET)
            part = os.read(self._descriptor, len(memory))
        memory[: len(part)] = part
        return len(part)


def own_memory(n_bytes: int) -> mmap.mmap:
    """Zeroed memory in huge pages, as far as the system has them free. It must not be shared: by default Linux makes
    no huge pages of memory that other processes could see."""
    if not hasattr(mmap, "MAP_PRIVATE"):  # on Windows there is one kind only
        return mmap.mmap(-1, n_bytes)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system that was built without
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
