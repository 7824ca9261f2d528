"""A cgroup with a memory limit, for a process that is started in it."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from localinfer.machine import cgroups

FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


class MemoryGroup(NamedTuple):
    """A cgroup; `limit` and `usage` are its files."""

    folder: Path
    limit: Path
    usage: Path

    def enter(self) -> None:
        """Move this process into the group. Child processes are created in it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Create a cgroup for the duration of the context. Skip the test where the system does not allow it."""
    group = _create(limit)
    if group is None:
        pytest.skip("no cgroup with a memory limit can be created here")
    try:
        yield group
    finally:
        _remove(group.folder)


def _create(limit: int) -> MemoryGroup | None:
    """Return a new group, or None. The groups above and this process's own group are tried as parents."""
    if sys.platform != "linux":
        return None
    version, folders = cgroups._groups("memory", cgroups.ROOT)
    limit_name, usage_name = FILES[version]
    for parent in reversed(folders):
        folder = parent / f"localinfer-test-{os.getpid()}"
        group = MemoryGroup(folder, folder / limit_name, folder / usage_name)
        with suppress(OSError):
            folder.mkdir()
            if group.limit.exists():
                group.limit.write_text(str(limit))
                return group
        with suppress(OSError):
            folder.rmdir()
    return None


def _remove(folder: Path) -> None:
    """End the processes of a group and remove it."""
    for _ in range(100):
        for number in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
