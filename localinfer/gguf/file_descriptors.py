"""Operations on file descriptors that differ between operating systems: reads and writes at an offset, and locks."""

import os
import sys
import threading

# Windows neither renames nor deletes an open file, and no file can replace an open one.
HOLDS_OPEN_FILES = sys.platform == "win32"

# The byte that is locked on Windows, the last one that an offset of 31 bits reaches. Other handles cannot read or write
# it. A longer file is read by others only when it is complete.
LOCKED_OFFSET = 0x7FFFFFFE

_seeking = threading.Lock()  # without calls for an offset, all threads share the position of a descriptor


def read_at(descriptor: int, n_bytes: int, offset: int) -> bytes:
    """Read at most `n_bytes` bytes from an offset."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, n_bytes, offset)
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, n_bytes)


def read_into(descriptor: int, memory: memoryview, offset: int) -> int:
    """Read from an offset into memory, at most len(memory) bytes. Return how many bytes were read."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [memory], offset)
    data = read_at(descriptor, len(memory), offset)
    memory[: len(data)] = data
    return len(data)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> int:
    """Write bytes at an offset. Return how many were written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def try_lock(descriptor: int) -> bool:
    """Lock a file as long as this process has it open. Return False if another process holds the lock."""
    try:
        if sys.platform == "win32":
            import msvcrt

            position = os.lseek(descriptor, 0, os.SEEK_CUR)
            os.lseek(descriptor, LOCKED_OFFSET, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(descriptor, position, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
