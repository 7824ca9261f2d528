"""The CPU cores of a Windows machine, from GetLogicalProcessorInformationEx, and the name of its CPU.

The function fills a buffer with records of varying size, SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX. Those of a core are:

    offset  0  uint32     relationship: 0 for a core
            4  uint32     size of the record in bytes
            8  uint8      flags
            9  uint8      efficiency class: the higher, the faster the core
           30  uint16     number of group masks, 1 for a core
           32  16 bytes   each: uint64 mask of logical processors, uint16 group, 6 bytes reserved
"""

import contextlib
import ctypes
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

PROCESSOR_CORE = 0  # the relationship of records of cores
HEADER, CORE, GROUP_MASK = struct.Struct("<II"), struct.Struct("<xB20xH"), struct.Struct("<QH6x")

CPU_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"  # of the registry


class Core(NamedTuple):
    """A physical core: its efficiency class, and its logical processors as (group, number)."""

    efficiency_class: int
    processors: frozenset[tuple[int, int]]


def cores() -> list[Core]:
    """Return the cores that this process may use. The list is empty if the system does not tell."""
    if sys.platform == "win32":
        kernel32 = ctypes.WinDLL("kernel32")
        return usable_cores(list(parse_cores(processor_information(kernel32))), affinity_mask(kernel32))
    return []


def thread_count_steps(usable: list[Core]) -> dict[str, int]:
    """Return the number of CPUs that are left after each step to the default number of threads, by description.

    Performance cores are those of the highest efficiency class.
    """
    best = max((core.efficiency_class for core in usable), default=0)
    fast = [core for core in usable if core.efficiency_class == best]
    steps = {
        "within the affinity mask": sum(len(core.processors) for core in usable),
        "performance cores": sum(len(core.processors) for core in fast),
        "physical cores": len(fast),
    }
    return steps if usable else {}


def usable_cores(found: list[Core], mask: int) -> list[Core]:
    """Return the cores, with their logical processors, that are within the affinity mask of the process.

    The mask describes the only group of processors. It is not used if there are several groups, or if it is 0.
    """
    if not mask or any(group for core in found for group, _ in core.processors):
        return found
    usable = [frozenset(each for each in core.processors if mask >> each[1] & 1) for core in found]
    return [Core(core.efficiency_class, some) for core, some in zip(found, usable, strict=True) if some]


def parse_cores(information: bytes) -> Iterator[Core]:
    """Yield the cores in a buffer of GetLogicalProcessorInformationEx."""
    start = 0
    while start + HEADER.size <= len(information):
        relationship, size = HEADER.unpack_from(information, start)
        if size < HEADER.size or start + size > len(information):
            return
        if relationship == PROCESSOR_CORE:
            efficiency_class, n_groups = CORE.unpack_from(information, start + HEADER.size)
            first = start + HEADER.size + CORE.size
            masks = [GROUP_MASK.unpack_from(information, first + GROUP_MASK.size * index) for index in range(n_groups)]
            processors = ((group, bit) for mask, group in masks for bit in range(64) if mask >> bit & 1)
            yield Core(efficiency_class, frozenset(processors))
        start += size


def processor_information(kernel32: Any) -> bytes:
    """Return the buffer of GetLogicalProcessorInformationEx for cores, empty if that fails."""
    query, size = kernel32.GetLogicalProcessorInformationEx, ctypes.c_uint32(0)
    query.argtypes, query.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    query(PROCESSOR_CORE, None, ctypes.byref(size))  # fails, and sets the size that it needs
    buffer = ctypes.create_string_buffer(size.value)
    return buffer.raw[: size.value] if query(PROCESSOR_CORE, buffer, ctypes.byref(size)) else b""


def affinity_mask(kernel32: Any) -> int:
    """Return the logical processors that this process may use, as bits, or 0 if they are not known."""
    own, system = ctypes.c_uint64(0), ctypes.c_uint64(0)
    kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    query = kernel32.GetProcessAffinityMask
    query.argtypes, query.restype = (ctypes.c_void_p,) * 3, ctypes.c_int
    done = query(kernel32.GetCurrentProcess(), ctypes.byref(own), ctypes.byref(system))
    return own.value if done else 0


def cpu_name() -> str:
    """Return the name of the CPU from the registry, or "" if it is not there."""
    if sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, CPU_KEY) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    return ""
