"""Resources of the machine that this process may use: CPU cores and memory."""

import os
import platform
import re
import sys
from functools import cache
from pathlib import Path

from localinfer.machine import cgroups

CPU = Path("/sys/devices/system/cpu")


@cache
def default_threads() -> int:
    """Return the number of physical performance cores within the affinity mask and the cgroup quota, at least 1.

    Two threads on one core, or a thread on an efficiency core that the others wait for, slow inference down.
    """
    return max(1, min(thread_count_steps().values()))


def thread_count_steps() -> dict[str, int]:
    """Return the steps that lead to the default number of threads: the number of CPUs left after each, by
    description."""
    steps = {"logical CPUs": os.cpu_count() or 1}
    if sys.platform == "darwin":
        cores = _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")
        return steps | ({"performance cores": cores} if cores else {})
    if sys.platform == "win32":
        from localinfer.machine import windows_cpu

        if found := windows_cpu.thread_count_steps(windows_cpu.cores()):
            return steps | found
    if not hasattr(os, "sched_getaffinity"):
        return steps | {"physical cores (estimated)": (os.cpu_count() or 2) // 2}
    allowed = os.sched_getaffinity(0)
    fast = _fast_cpus(allowed)
    cores = len({_sibling_threads(number) for number in fast})
    return steps | {
        "within the affinity mask": len(allowed),
        "performance cores": len(fast),
        "physical cores": cores,
        "within the cgroup quota": _quota_cores(cores),
    }


def available_cpus() -> int:
    """Return the number of logical CPUs within the affinity mask and the cgroup quota, at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, _quota_cores(cpus)))


def cpu_name() -> str:
    """Return the CPU's model name, or "" if it is unknown."""
    if sys.platform == "darwin":
        return _sysctl_text("machdep.cpu.brand_string")
    if sys.platform == "win32":
        from localinfer.machine import windows_cpu

        return windows_cpu.cpu_name() or platform.processor()
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor()


def is_translated() -> bool:
    """Return whether this is an Intel program that macOS translates for an Apple CPU (Rosetta)."""
    return sys.platform == "darwin" and _sysctl("sysctl.proc_translated") == 1


def _sysctl(name: str) -> int:
    """Return a numeric sysctl value of macOS, or 0."""
    text = _sysctl_text(name)
    return int(text) if text.isdigit() else 0


def _sysctl_text(name: str) -> str:
    """Return a sysctl value of macOS as text, or ""."""
    import subprocess

    result = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def _fast_cpus(numbers: set[int]) -> set[int]:
    """Return the performance CPUs among `numbers`, from Intel's hybrid core list or ARM's core capacities."""
    performance = numbers & _cpu_list(Path("/sys/devices/cpu_core/cpus"))
    if performance:
        return performance
    capacity = {number: _read_integer(CPU / f"cpu{number}" / "cpu_capacity") for number in numbers}
    best = max(capacity.values(), default=0)
    return {number for number in numbers if capacity[number] * 4 >= best * 3}


def _sibling_threads(number: int) -> str:
    """Return the list of hardware threads on the CPU's core, as text. It identifies the core."""
    try:
        return (CPU / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def _cpu_list(path: Path) -> set[int]:
    """Parse a CPU list such as `0-3,8`. Return an empty set if the file does not exist."""
    try:
        text = path.read_text()
    except OSError:
        return set()
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {number for low, high in spans for number in range(int(low), int(high or low) + 1)}


def _read_integer(path: Path) -> int:
    """Return the integer in a file, or 0."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _quota_cores(cores: int) -> int:
    """Return the number of whole cores that the CPU quotas of the cgroups allow, at least 1."""
    quota = cgroups.cpu_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, within the limits of the cgroups and of the process.

    Memory that this process allocated is not available, even if it did not touch it yet.
    """
    from localinfer.machine.untouched_memory import untouched_bytes  # needs numpy

    limits = _unused_memory(), cgroups.available_memory()
    unused = min(limit for limit in limits if limit is not None)
    return min(max(0, unused - untouched_bytes()), address_space())


def _unused_memory() -> int:
    """Return the bytes that the system can provide without swapping."""
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match:
        return 1024 * int(match[1])
    import psutil  # the import takes 8 ms, so it is only a fallback

    return int(psutil.virtual_memory().available)


def address_space() -> int:
    """Return the bytes of address space that this process may still map. Without `ulimit -v` this is `sys.maxsize`."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # Windows
        return sys.maxsize
    limit, _ = getrlimit(RLIMIT_AS)
    if limit == RLIM_INFINITY:
        return sys.maxsize
    import psutil

    return max(0, limit - int(psutil.Process().memory_info().vms))
