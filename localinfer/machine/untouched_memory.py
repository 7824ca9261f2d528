"""Memory that this process allocated and did not touch yet.

The system gives memory to a page when it is touched first, so it still counts these pages as available. Two models
would each be promised the same memory for their KV caches.
"""

import ctypes
import mmap
import sys
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST = 1 << 20  # bytes of an array that is worth counting

_arrays: "weakref.WeakValueDictionary[int, NDArray[Any]]" = weakref.WeakValueDictionary()  # by address


def register(array: NDArray[Any]) -> None:
    """Count the array's untouched pages as used, as long as the array exists."""
    if array.nbytes >= SMALLEST:
        _arrays[array.ctypes.data] = array


def untouched_bytes() -> int:
    """Return the bytes of all registered arrays that are not touched yet; 0 where the system does not say (Windows)."""
    return sum(_untouched_bytes(array) for array in list(_arrays.values()))


def _untouched_bytes(array: NDArray[Any]) -> int:
    """Return the bytes of the array's whole pages that are not in memory."""
    if sys.platform == "win32":
        return 0
    start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (array.ctypes.data + array.nbytes - start) // mmap.PAGESIZE
    states = np.zeros(count, np.uint8)  # the lowest bit: whether a page is in memory
    arguments = ctypes.c_void_p(start), ctypes.c_size_t(count * mmap.PAGESIZE), ctypes.c_void_p(states.ctypes.data)
    if ctypes.CDLL(None, use_errno=True).mincore(*arguments):
        return 0
    return (count - int(np.count_nonzero(states & 1))) * mmap.PAGESIZE
