"""Memory for machine code: written first, then executable and read-only, never both at once.

Some systems forbid memory that is writable and executable (W^X). Machine code stays until the process ends, because
threads may be running it.

This module does not import llvmlite.
"""

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from quant.jit.object_file import AARCH64, MAX_ALIGNMENT, X86_64, ObjectFile, ObjectFileError

# The functions of the system that kernels may call. Python's and numba's are not among them. On Windows, __chkstk
# touches the pages of a large stack frame.
SYSTEM_FUNCTIONS = frozenset({"memset", "memcpy", "memmove", "sched_yield", "SwitchToThread", "__chkstk"})

MACHINES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}  # of platform.machine()

def load(objects: Sequence[ObjectFile], address_of: Callable[[str], int]) -> list[int]:
    """Load object files, and return the addresses of their images.

    `address_of` returns the address of what an object file does not define. Raises its errors, MemoryError, and
    RuntimeError if the system does not allow machine code.
    """
    sizes = [-(-parsed.size // MAX_ALIGNMENT) * MAX_ALIGNMENT for parsed in objects]
    if not objects:
        return []
    base = allocate(sum(sizes))
    addresses = [base + sum(sizes[:number]) for number in range(len(sizes))]
    for parsed, address in zip(objects, addresses, strict=True):
        ctypes.memmove(address, bytes(parsed.link(address, address_of)), parsed.size)
    make_executable(base, sum(sizes))
    return addresses


@cache
def system_function(name: str, allowed: frozenset[str] = SYSTEM_FUNCTIONS) -> int:
    """Return the address of a function of the system. Raises ObjectFileError if it is not `allowed`, or if the system
    lacks it."""
    for library in system_libraries() if name in allowed else ():
        if function := getattr(library, name, None):
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise ObjectFileError(f"object file: calls {name}")


@cache
def system_libraries() -> tuple[Any, ...]:
    """Return the libraries of the system: those of the process, or the ones that every process on Windows has."""
    if sys.platform == "win32":
        return ctypes.WinDLL("kernel32"), ctypes.WinDLL("ntdll")
    return (ctypes.CDLL(None, use_errno=True),)


def require_loadable(parsed: ObjectFile) -> None:
    """Raise ObjectFileError unless the file is for this kind of machine, and needs only SYSTEM_FUNCTIONS."""
    if parsed.machine != MACHINES.get(platform.machine().lower()):
        raise ObjectFileError(f"object file: not for {platform.machine()}")
    for name in parsed.undefined:
        system_function(name)


def allocate(nbytes: int) -> int:
    """Allocate writable memory that begins at a page and is never freed, and return its address. Raises MemoryError."""
    if sys.platform == "win32":
        commit, read_write = 0x3000, 0x04
        virtual_alloc = system_libraries()[0].VirtualAlloc
        virtual_alloc.restype = ctypes.c_void_p
        address = virtual_alloc(None, ctypes.c_size_t(nbytes), commit, read_write)
        if not address:
            raise MemoryError
        return int(address)
    try:
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise MemoryError from None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))  # threads may run its code when the interpreter ends
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def make_executable(address: int, nbytes: int) -> None:
    """Make memory executable and read-only, from the address of `allocate` on. Raises RuntimeError if the system does
    not allow it."""
    start, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    if sys.platform == "win32":
        kernel32, execute_read, before = system_libraries()[0], 0x20, ctypes.c_ulong()
        if not kernel32.VirtualProtect(start, size, execute_read, ctypes.byref(before)):
            raise RuntimeError("machine code cannot be made executable")
        kernel32.FlushInstructionCache(ctypes.c_void_p(-1), start, size)
        return
    [libc] = system_libraries()
    if libc.mprotect(start, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise RuntimeError(f"machine code cannot be made executable: {os.strerror(ctypes.get_errno())}")
    if sys.platform == "darwin":  # Linux does so when a page becomes executable
        libc.sys_icache_invalidate(start, size)
