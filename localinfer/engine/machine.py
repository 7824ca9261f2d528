"""What this process may use of the machine: cores worth a thread, and memory."""

import os
import platform
import re
import sys
from functools import cache
from pathlib import Path

CPU = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")


@cache
def default_threads() -> int:
    """Physical performance cores within the affinity mask and the cgroup's quota, at least 1.

    Two threads on one core, or one on an efficiency core that the others wait for, make inference slower.
    """
    return max(1, min(narrowing().values()))


def narrowing() -> dict[str, int]:
    """What leads to the number of threads, by name: how many are left after each step."""
    steps = {"in the machine": os.cpu_count() or 1}
    if sys.platform == "darwin":
        cores = _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")
        return steps | ({"performance cores": cores} if cores else {})
    if not hasattr(os, "sched_getaffinity"):
        return steps | {"physical cores, as a guess": (os.cpu_count() or 2) // 2}
    allowed = os.sched_getaffinity(0)
    fast = _fast(allowed)
    cores = len({_siblings(number) for number in fast})
    return steps | {
        "for this process": len(allowed),
        "fast ones": len(fast),
        "physical cores": cores,
        "within the control group's quota": _quota(cores),
    }


def cpu_name() -> str:
    """What the CPU calls itself; "" if it does not say."""
    if sys.platform == "darwin":
        return _sysctl_text("machdep.cpu.brand_string")
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor()


def _sysctl(name: str) -> int:
    """A number that macOS tells about itself, or 0."""
    text = _sysctl_text(name)
    return int(text) if text.isdigit() else 0


def _sysctl_text(name: str) -> str:
    """What macOS tells about itself, or ""."""
    import subprocess

    result = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def _fast(numbers: set[int]) -> set[int]:
    """Those of the CPUs that are not slower than the fastest by design: hybrid Intel, then ARM's capacities."""
    performance = numbers & _cpu_list(Path("/sys/devices/cpu_core/cpus"))
    if performance:
        return performance
    capacity = {number: _integer(CPU / f"cpu{number}" / "cpu_capacity") for number in numbers}
    best = max(capacity.values(), default=0)
    return {number for number in numbers if capacity[number] * 4 >= best * 3}


def _siblings(number: int) -> str:
    """What tells a CPU's core from others: the list of threads on it."""
    try:
        return (CPU / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def _cpu_list(path: Path) -> set[int]:
    """A list like 0-3,8 as numbers; empty if there is none."""
    try:
        text = path.read_text()
    except OSError:
        return set()
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {number for low, high in spans for number in range(int(low), int(high or low) + 1)}


def _integer(path: Path) -> int:
    """The number in a file, or 0."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _own_cgroups() -> list[Path]:
    """The control groups (version 2) that bound this process, innermost first."""
    try:
        entry = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    inner = CGROUP / entry[3:].lstrip("/")
    return [folder for folder in (inner, *inner.parents) if CGROUP in (folder, *folder.parents)]


def _quota(cores: int) -> int:
    """How many whole cores the cgroups' CPU quotas allow, at least 1."""
    for folder in _own_cgroups():
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_memory() -> int:
    """The bytes that can be taken without swapping, within the limits of the cgroups and of the process."""
    available = min(_unused_memory(), address_space())
    for folder in _own_cgroups():
        limit = _integer(folder / "memory.max")
        if limit:
            available = min(available, max(0, limit - _integer(folder / "memory.current")))
    return available


def _unused_memory() -> int:
    """What the system can give away without swapping."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return 1024 * int(found[1])
    import psutil  # takes 8 ms: not where it can be read

    return int(psutil.virtual_memory().available)


def address_space() -> int:
    """The bytes that this process may map yet: without end, unless somebody set a limit (`ulimit -v`)."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # not on this system
        return sys.maxsize
    limit, _ = getrlimit(RLIMIT_AS)
    if limit == RLIM_INFINITY:
        return sys.maxsize
    import psutil

    return max(0, limit - int(psutil.Process().memory_info().vms))
