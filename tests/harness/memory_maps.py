"""What Linux says about mapped memory and the page cache."""

import ctypes
import mmap
import re
from pathlib import Path

import numpy as np


def flags_at(address: int) -> list[str]:
    """Return Linux's VmFlags of the mapping that contains an address."""
    actual = re.findall(r"(?ms)^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: (.*?)$", Path("/proc/self/smaps").read_text())
    return next(flags.split() for low, high, flags in actual if int(low, 16) <= address < int(high, 16))


def cached_fraction(path: Path) -> float:
    """Return which part of a file is in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        pages = np.zeros(-(-len(mapping) // mmap.PAGESIZE), np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), ctypes.c_void_p(pages.ctypes.data)
        assert libc.mincore(*arguments) == 0
        return float(np.mean(pages & 1))
