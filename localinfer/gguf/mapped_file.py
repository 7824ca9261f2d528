"""A file mapped read-only as an array of bytes. Nothing is copied or read before it is accessed.

Only regular files are accepted: reading a pipe or a device could block or never end. Callers validate the content.
"""

import contextlib
import errno
import mmap
import os
import stat
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, ModelNotFoundError, NotEnoughMemoryError
from localinfer.escaping import printable
from localinfer.gguf import file_signatures
from localinfer.gguf.huge_pages import request_huge_pages

FILE_TYPES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # do not block on a pipe


class MappedFile:
    """An open regular file: `map` and `bytes` (uint8, read-only) are its whole content, `size` bytes long.

    Arrays made from it keep the mapping alive. The file is closed when the last reference is gone.
    """

    in_memory = False  # whether the bytes are process memory, as in `localinfer.gguf.in_memory`
    access = mmap.ACCESS_READ

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._open()
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self._require_regular(status.st_mode)  # the path may have changed since the first check
        if status.st_size == 0:
            raise self.error("", "empty file")
        self.size = status.st_size
        self._identity = _identity(status)
        self.map = self._map()
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)

    def error(self, field: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """Return a one-line error about this file. `field` is printed unchanged: escape text from the file."""
        return kind(": ".join(text for text in (printable(str(self.path)), field, problem) if text))

    def check_unchanged(self) -> None:
        """Raise LocalInferError if the file was truncated or overwritten since it was opened.

        A file that was replaced by renaming is fine: the mapping still has the old one.
        """
        if _identity(os.fstat(self._descriptor)) != self._identity:
            raise self.error("", "file changed or truncated while in use")

    def accept_changes(self) -> None:
        """Accept the file as it is now, for code that writes it while it is open."""
        self._identity = _identity(os.fstat(self._descriptor))

    def lock(self) -> str:
        """Lock the whole file in memory (`mlock`) while it is mapped. Return the reason of a failure, or "".

        The system limits how many bytes can be locked (`ulimit -l`). Windows is not supported.
        """
        import ctypes  # imported late: rarely needed

        libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
        if libc is None:
            return "memory cannot be locked on this system"
        if libc.mlock(ctypes.c_void_p(self.bytes.ctypes.data), ctypes.c_size_t(self.size)):
            return f"cannot be locked in memory: {os.strerror(ctypes.get_errno())}"
        return ""

    def reopen(self, flags: int = 0) -> int:
        """Return a new descriptor of the same file, opened with additional flags.

        Raises OSError if the file system does not support them, LocalInferError if another file has taken its place.
        """
        descriptor = os.open(self.path, OPEN_FLAGS | flags)
        if _identity(os.fstat(descriptor)) != self._identity:
            os.close(descriptor)
            raise self.error("", "file changed or truncated while in use")
        return descriptor

    def advise(self, advice: int, start: int, n_bytes: int) -> None:
        """Tell the system how the bytes from offset `start` on will be used: a constant `mmap.MADV_...`."""
        page = start - start % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # no promise, so nothing depends on it
            self.map.madvise(advice, page, start - page + n_bytes)

    def window(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return some bytes in a separate mapping, which is unmapped when the array is freed.

        Raises LocalInferError if the file changed since it was opened.
        """
        self.check_unchanged()
        page = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = mmap.mmap(self._descriptor, start - page + n_bytes, access=mmap.ACCESS_READ, offset=page)
        except (OSError, ValueError) as error:
            raise self.error("", f"cannot be mapped into memory: {error}") from None
        return np.frombuffer(mapping, np.uint8, n_bytes, start - page)

    def _open(self) -> int:
        try:
            self._require_regular(self.path.stat().st_mode)  # before opening: opening a device may have effects
            return os.open(self.path, OPEN_FLAGS)
        except FileNotFoundError:
            raise self.error("", "no such file", ModelNotFoundError) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise self.error("", getattr(error, "strerror", None) or "cannot be the name of a file") from None

    def _require_regular(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            kind = FILE_TYPES.get(stat.S_IFMT(mode), "something else")
            hint = file_signatures.describe_directory(self.path) if stat.S_ISDIR(mode) else ""
            raise self.error("", f"is {kind}, not a file{hint and f': this is {hint}'}")

    def _map(self) -> mmap.mmap:
        try:
            mapping = mmap.mmap(self._descriptor, self.size, access=self.access)
        except (OSError, ValueError) as error:  # ValueError: the file was truncated meanwhile
            full = getattr(error, "errno", None) == errno.ENOMEM
            what = f"cannot be mapped into memory: {getattr(error, 'strerror', None) or error}"
            raise self.error("", what, NotEnoughMemoryError if full else LocalInferError) from None
        request_huge_pages(mapping)
        return mapping


class PrivateFile(MappedFile):
    """A `MappedFile` whose bytes can be changed in memory. The file and its `window`s keep the original bytes.

    A page that is changed is copied into process memory and stays there until the mapping ends.
    """

    access = mmap.ACCESS_COPY


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
