"""Memory between inaccessible pages: an access past its end ends the process at once."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
PATTERN = 0xA5  # fills the gaps between the memory and the guard pages
PROT_NONE = 0
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
mprotect = ctypes.CDLL(None, use_errno=True).mprotect
mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
Bytes = NDArray[np.uint8]


def guarded_memory(nbytes: int, alignment: int = 1) -> Bytes:
    """Return `nbytes` zeroed bytes that end as close to the following guard page as the alignment allows.

    Raises MemoryError if the memory cannot be mapped.
    """
    size = -(-nbytes // PAGE) * PAGE
    try:
        whole = np.frombuffer(mmap.mmap(-1, PAGE + size + PAGE, flags=PRIVATE), np.uint8)
    except OSError as error:
        raise MemoryError(f"{nbytes} bytes: {error}") from None
    for guard in (0, PAGE + size):
        if mprotect(whole.ctypes.data + guard, PAGE, PROT_NONE):
            raise MemoryError(f"mprotect: error {ctypes.get_errno()}")
    start = PAGE + (size - nbytes) // alignment * alignment
    memory = whole[start : start + nbytes]
    for gap in guard_gaps(memory):
        gap[:] = PATTERN
    return memory


def guard_gaps(memory: Bytes) -> tuple[Bytes, Bytes]:
    """Return the bytes before and after guarded memory, up to the guard pages: less than a page each."""
    whole = memory.base
    assert isinstance(whole, np.ndarray)
    start = memory.ctypes.data - whole.ctypes.data if len(memory) else PAGE  # an empty array has no address
    return whole[PAGE:start], whole[start + len(memory) : -PAGE]


def is_intact(memory: Bytes) -> bool:
    """Return whether nothing was written before or after guarded memory."""
    return all((gap == PATTERN).all() for gap in guard_gaps(memory))
