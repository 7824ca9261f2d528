"""A file on disk as an array of bytes: mapped read-only, nothing copied, nothing read until it is touched.

Only regular files: a pipe or a device could block, or never end. The caller checks what is in the bytes.
"""

import errno
import mmap
import os
import stat
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, ModelNotFound, NotEnoughMemory
from localinfer.files import not_gguf
from localinfer.text import printable

KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe must not make us wait


class MappedFile:
    """An open regular file: `map` and `bytes` (uint8, read-only) are its whole content, `size` bytes long.

    The arrays made from it keep the mapping alive; the file is closed when the last user forgets it.
    """

    in_memory = False  # whether the bytes are memory of the process's own, as in `localinfer.files.in_memory`

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._open()
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self._require_regular(status.st_mode)  # it may be another one than a moment ago
        if status.st_size == 0:
            raise self.error("", "empty file")
        self.size = status.st_size
        self._identity = _identity(status)
        self.map = self._map()
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)

    def error(self, field: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """The one line about this file; `field` is printed as it is: escape text of the file before."""
        return kind(": ".join(part for part in (printable(str(self.path)), field, problem) if part))

    def check_unchanged(self) -> None:
        """Raise if the file was truncated or overwritten since it was opened.

        A file that another one replaced by renaming is still whole: this mapping keeps the old one.
        """
        if _identity(os.fstat(self._descriptor)) != self._identity:
            raise self.error("", "file changed or truncated while in use")

    def accept_changes(self) -> None:
        """From now on the file shall be what it is now: for whoever writes it while it is open."""
        self._identity = _identity(os.fstat(self._descriptor))

    def lock(self) -> str:
        """Read everything, and keep it in memory as long as it is mapped; why that is not possible, or "".

        The system allows so many bytes to be locked (`ulimit -l`); Windows has another call for it, which is not made.
        """
        import ctypes  # which few need

        libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
        if libc is None:
            return "memory cannot be locked on this system"
        if libc.mlock(ctypes.c_void_p(self.bytes.ctypes.data), ctypes.c_size_t(self.size)):
            return f"cannot be locked in memory: {os.strerror(ctypes.get_errno())}"
        return ""

    def window(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """Some of the bytes in a mapping of their own. It ends with the array, and then they take no memory any more.

        Raises LocalInferError if the file is not as it was when it was opened.
        """
        self.check_unchanged()
        page = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            part = mmap.mmap(self._descriptor, start - page + n_bytes, access=mmap.ACCESS_READ, offset=page)
        except (OSError, ValueError) as error:
            raise self.error("", f"cannot be mapped into memory: {error}") from None
        return np.frombuffer(part, np.uint8, n_bytes, start - page)

    def _open(self) -> int:
        try:
            self._require_regular(self.path.stat().st_mode)  # first: a device may react to being opened
            return os.open(self.path, READ)
        except FileNotFoundError:
            raise self.error("", "no such file", ModelNotFound) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise self.error("", getattr(error, "strerror", None) or "cannot be the name of a file") from None

    def _require_regular(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            kind = KINDS.get(stat.S_IFMT(mode), "something else")
            hint = not_gguf.describe_directory(self.path) if stat.S_ISDIR(mode) else ""
            raise self.error("", f"is {kind}, not a file{hint and f': this is {hint}'}")

    def _map(self) -> mmap.mmap:
        try:
            return mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file became shorter just now
            full = getattr(error, "errno", None) == errno.ENOMEM
            what = f"cannot be mapped into memory: {getattr(error, 'strerror', None) or error}"
            raise self.error("", what, NotEnoughMemory if full else LocalInferError) from None


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
