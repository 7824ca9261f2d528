"""Memory between pages that nobody may touch: what reads or writes past its end is killed at once."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
PATTERN = 0xA5  # what lies between the memory and the pages
PROT_NONE = 0
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
mprotect = ctypes.CDLL(None, use_errno=True).mprotect
mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
Bytes = NDArray[np.uint8]


def fenced(nbytes: int, alignment: int = 1) -> Bytes:
    """So many zeroed bytes, as close to the page behind them as the alignment allows, or MemoryError."""
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
    for gap in gaps(memory):
        gap[:] = PATTERN
    return memory


def gaps(memory: Bytes) -> tuple[Bytes, Bytes]:
    """What lies in front of fenced memory and behind it, up to the pages: less than a page."""
    whole = memory.base
    assert isinstance(whole, np.ndarray)
    start = memory.ctypes.data - whole.ctypes.data if len(memory) else PAGE  # numpy has no address for nothing
    return whole[PAGE:start], whole[start + len(memory) : -PAGE]


def is_intact(memory: Bytes) -> bool:
    """Whether nothing was written in front of fenced memory or behind it."""
    return all((gap == PATTERN).all() for gap in gaps(memory))
