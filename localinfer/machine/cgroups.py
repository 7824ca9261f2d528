"""Limits of the control groups (cgroups) that contain this process, which containers and systemd set.

In version 2, one tree has all controllers. In version 1, each controller has a tree of its own. A system can have trees
of both versions. A limit applies to all groups below the one that sets it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
# ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPER_OPTIONS
MOUNT = re.compile(r"^\d+ \d+ \S+ (\S+) (\S+) .*? - (cgroup2?) \S+ (\S+)$", re.MULTILINE)
GROUP = re.compile(r"^\d+:([^:]*):(.*)$", re.MULTILINE)
FILE_PAGES_V1 = "total_inactive_file", "total_active_file"  # includes those of groups below
FILE_PAGES_V2 = "inactive_file", "active_file"


class Groups(NamedTuple):
    """The folders of the groups that limit this process with a controller, innermost first."""

    version: int
    folders: list[Path]


def available_memory(root: Path = ROOT) -> int | None:
    """Return the bytes that the memory limits of all groups leave, or None without a limit.

    The system drops pages of files, such as those of a memory-mapped model, when a group needs its memory for something
    else. They count as available, as they do in the system's own MemAvailable.
    """
    version, folders = _groups("memory", root)
    limit_names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    usage_name = "memory.current" if version == 2 else "memory.usage_in_bytes"
    left = []
    for folder in folders:
        limits = [limit for name in limit_names if (limit := _read_integer(folder / name)) is not None]
        if limits and not (version == 1 and folder != folders[0] and _ignores_groups_below(folder)):
            usage = _read_integer(folder / usage_name) or 0
            pages = min(usage, _file_pages(folder, FILE_PAGES_V2 if version == 2 else FILE_PAGES_V1))
            left.append(max(0, min(limits) - usage + pages))
    return min(left, default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the smallest quota of CPU time among all groups, in CPUs, or None without a quota."""
    version, folders = _groups("cpu", root)
    quotas = []
    for folder in folders:
        if version == 2:
            words = _read(folder / "cpu.max").split()
        else:
            words = [_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):  # "max" or -1: no quota
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _groups(controller: str, root: Path) -> Groups:
    """Return the groups of the tree that has the controller. If version 1 has it, version 2 cannot have it."""
    own = {name: path for names, path in GROUP.findall(_read(root / "proc/self/cgroup")) for name in names.split(",")}
    trees: dict[int, tuple[str, str]] = {}  # version -> root and mount point
    for tree_root, mount_point, kind, options in MOUNT.findall(_read(root / "proc/self/mountinfo")):
        if kind == "cgroup2" or controller in options.split(","):
            trees.setdefault(2 if kind == "cgroup2" else 1, (tree_root, mount_point))
    for version, name in (1, controller), (2, ""):
        if name in own and version in trees:
            return Groups(version, list(_folders(*trees[version], own[name], root)))
    return Groups(2, [])


def _folders(tree_root: str, mount_point: str, path: str, root: Path) -> Iterator[Path]:
    """Yield the folders of a group and of those above it, within a mounted tree.

    A container can have only the tree below `tree_root` mounted. If its own path is not below it, it is unknown, and
    only the group at the mount point is visible.
    """
    mounted = root / mount_point.lstrip("/")
    inner = path.removeprefix(tree_root.rstrip("/"))
    is_visible = path == tree_root or (path.startswith(tree_root.rstrip("/") + "/") and ".." not in path.split("/"))
    folder = mounted / inner.lstrip("/") if is_visible else mounted
    while folder != mounted:
        yield folder
        folder = folder.parent
    yield mounted


def _ignores_groups_below(folder: Path) -> bool:
    """Return whether a group of version 1 limits only its own processes, which old kernels allow."""
    return _read(folder / "memory.use_hierarchy").strip() == "0"


def _file_pages(folder: Path, names: tuple[str, ...]) -> int:
    """Return the bytes of a group's pages that are copies of files."""
    words = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return sum(int(line[1]) for line in words if len(line) == 2 and line[0] in names and line[1].isdecimal())


def _read_integer(path: Path) -> int | None:
    """Return the number in a file, or None if there is no file or no number, such as `max`."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
