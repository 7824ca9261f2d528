"""Limits of cgroups, in folder trees as systems with either version have them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from localinfer.machine import cgroups, resources, untouched_memory

MIB = 1 << 20
UNLIMITED = "9223372036854771712"  # what version 1 says without a limit
Files = Mapping[str, str]

SYSTEMD_V2: Files = {
    "proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope\n",
    "proc/self/mountinfo":
        "22 28 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n"
        "29 22 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
}  # fmt: skip
SCOPE = "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope"

DOCKER_V2: Files = {  # a cgroup namespace: the container's group is the root
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "631 630 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n",
}

DOCKER_V1: Files = {  # no namespace: paths are the host's, of which the container sees its own part
    "proc/self/cgroup":
        "12:pids:/docker/3f2a\n7:cpu,cpuacct:/docker/3f2a\n4:memory:/docker/3f2a\n1:name=systemd:/docker/3f2a\n0::/x\n",
    "proc/self/mountinfo":
        "700 699 0:30 /docker/3f2a /sys/fs/cgroup/systemd ro - cgroup cgroup rw,xattr,name=systemd\n"
        "704 699 0:34 /docker/3f2a /sys/fs/cgroup/memory ro,nosuid master:16 - cgroup cgroup rw,memory\n"
        "709 699 0:39 /docker/3f2a /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n",
}  # fmt: skip

HYBRID: Files = {  # version 1 has the controllers, version 2 has none
    "proc/self/cgroup": "9:name=systemd:/\n4:memory:/service/a3c7\n1:cpu:/\n0::/service\n",
    "proc/self/mountinfo":
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
}  # fmt: skip


def write(root: Path, *trees: Files) -> None:
    """Write the files of a system."""
    for tree in trees:
        for name, text in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def memory_v2(folder: str, limit: str, usage: int, file_pages: int = 0, high: str = "max") -> Files:
    """Return the memory files of a group of version 2. A quarter of the pages of files was used recently."""
    stat = f"anon 5\nfile 7\ninactive_file {file_pages * 3 // 4}\nactive_file {file_pages // 4}\nslab 9\n"
    names = {"memory.max": limit, "memory.high": high, "memory.current": str(usage), "memory.stat": stat}
    return {f"{folder}/{name}": f"{text}\n" for name, text in names.items()}


def memory_v1(folder: str, limit: str, usage: int, file_pages: int = 0, hierarchy: int = 1) -> Files:
    """Return the memory files of a group of version 1."""
    stat = f"cache 5\ninactive_file 1\nactive_file 1\ntotal_inactive_file {file_pages}\ntotal_active_file 0\n"
    names = {
        "memory.limit_in_bytes": limit, "memory.usage_in_bytes": str(usage), "memory.stat": stat,
        "memory.use_hierarchy": str(hierarchy),
    }  # fmt: skip
    return {f"{folder}/{name}": f"{text}\n" for name, text in names.items()}


class TestMemory:
    def test_version_2(self, tmp_path: Path) -> None:
        write(tmp_path, SYSTEMD_V2, memory_v2(SCOPE, str(500 * MIB), 100 * MIB))
        assert cgroups.available_memory(tmp_path) == 400 * MIB

    @pytest.mark.parametrize("parent", ["user.slice", "user.slice/user-1000.slice", "."])
    def test_groups_above(self, tmp_path: Path, parent: str) -> None:
        write(tmp_path, SYSTEMD_V2, memory_v2(SCOPE, "max", 100 * MIB))
        assert cgroups.available_memory(tmp_path) is None
        write(tmp_path, memory_v2(f"sys/fs/cgroup/{parent}", str(900 * MIB), 600 * MIB))
        assert cgroups.available_memory(tmp_path) == 300 * MIB
        write(tmp_path, memory_v2(SCOPE, str(350 * MIB), 100 * MIB))
        assert cgroups.available_memory(tmp_path) == 250 * MIB

    def test_throttling(self, tmp_path: Path) -> None:
        """Above memory.high (MemoryHigh of systemd), a process is slowed down until it almost stands still."""
        write(tmp_path, SYSTEMD_V2, memory_v2(SCOPE, "max", 100 * MIB, high=str(300 * MIB)))
        assert cgroups.available_memory(tmp_path) == 200 * MIB

    def test_pages_of_files(self, tmp_path: Path) -> None:
        """A group whose memory is full of pages of a model file can drop them."""
        write(tmp_path, SYSTEMD_V2, memory_v2(SCOPE, str(500 * MIB), 500 * MIB, file_pages=400 * MIB))
        assert cgroups.available_memory(tmp_path) == 400 * MIB
        write(tmp_path, DOCKER_V1, memory_v1("sys/fs/cgroup/memory", str(500 * MIB), 490 * MIB, 100 * MIB))
        assert cgroups.available_memory(tmp_path) == 110 * MIB

    def test_usage_above_the_limit(self, tmp_path: Path) -> None:
        write(tmp_path, DOCKER_V2, memory_v2("sys/fs/cgroup", str(500 * MIB), 600 * MIB))
        assert cgroups.available_memory(tmp_path) == 0

    def test_namespace(self, tmp_path: Path) -> None:
        write(tmp_path, DOCKER_V2, memory_v2("sys/fs/cgroup", str(500 * MIB), 100 * MIB))
        assert cgroups.available_memory(tmp_path) == 400 * MIB

    def test_version_1_in_a_container(self, tmp_path: Path) -> None:
        write(tmp_path, DOCKER_V1, memory_v1("sys/fs/cgroup/memory", str(500 * MIB), 100 * MIB))
        assert cgroups.available_memory(tmp_path) == 400 * MIB

    def test_version_1_without_a_limit(self, tmp_path: Path) -> None:
        write(tmp_path, DOCKER_V1, memory_v1("sys/fs/cgroup/memory", UNLIMITED, 100 * MIB))
        assert (cgroups.available_memory(tmp_path) or 0) > 1 << 60

    def test_both_versions(self, tmp_path: Path) -> None:
        group = "sys/fs/cgroup/memory/service/a3c7"
        write(tmp_path, HYBRID, memory_v1(group, str(500 * MIB), 100 * MIB))
        write(tmp_path, {"sys/fs/cgroup/unified/service/cgroup.procs": "1\n"})
        assert cgroups.available_memory(tmp_path) == 400 * MIB
        write(tmp_path, memory_v1("sys/fs/cgroup/memory/service", str(200 * MIB), 150 * MIB))
        assert cgroups.available_memory(tmp_path) == 50 * MIB

    def test_groups_of_version_1_that_limit_only_themselves(self, tmp_path: Path) -> None:
        write(tmp_path, HYBRID, memory_v1("sys/fs/cgroup/memory/service/a3c7", str(500 * MIB), 100 * MIB, hierarchy=0))
        write(tmp_path, memory_v1("sys/fs/cgroup/memory/service", str(200 * MIB), 150 * MIB, hierarchy=0))
        assert cgroups.available_memory(tmp_path) == 400 * MIB

    @pytest.mark.parametrize("path", ["/other/3f2a", "/docker/3f2abc", "/docker/3f2a/../../..", "/"])
    def test_unknown_path_in_a_container(self, tmp_path: Path, path: str) -> None:
        """The group at the mount point is that of the container."""
        write(tmp_path, DOCKER_V1 | {"proc/self/cgroup": f"4:memory:{path}\n"})
        write(tmp_path, memory_v1("sys/fs/cgroup/memory", str(500 * MIB), 100 * MIB))
        assert cgroups.available_memory(tmp_path) == 400 * MIB

    @pytest.mark.parametrize("text", ["", "\n", "0:/\n", "4:memory\n", "\0", "0::/\n" * 3])
    def test_systems_without_limits(self, tmp_path: Path, text: str) -> None:
        assert cgroups.available_memory(tmp_path) is None
        write(tmp_path, SYSTEMD_V2 | {"proc/self/cgroup": text})
        assert cgroups.available_memory(tmp_path) is None
        write(tmp_path, {"proc/self/mountinfo": text})
        assert cgroups.available_memory(tmp_path) is None

    def test_unreadable_numbers(self, tmp_path: Path) -> None:
        write(tmp_path, SYSTEMD_V2, memory_v2(SCOPE, "-1", 100 * MIB, high="x"))
        assert cgroups.available_memory(tmp_path) is None
        write(tmp_path, memory_v2(SCOPE, "4096", 100), {f"{SCOPE}/memory.stat": "a b\n"})
        write(tmp_path, {f"{SCOPE}/memory.current": "?"})
        assert cgroups.available_memory(tmp_path) == 4096


class TestQuota:
    def test_version_2(self, tmp_path: Path) -> None:
        write(tmp_path, SYSTEMD_V2, {f"{SCOPE}/cpu.max": "max 100000\n"})
        assert cgroups.cpu_quota(tmp_path) is None
        write(tmp_path, {f"{SCOPE}/cpu.max": "350000 100000\n", "sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n"})
        assert cgroups.cpu_quota(tmp_path) == 3.5

    def test_version_1(self, tmp_path: Path) -> None:
        folder = "sys/fs/cgroup/cpu,cpuacct"
        write(tmp_path, DOCKER_V1, {f"{folder}/cpu.cfs_quota_us": "-1\n", f"{folder}/cpu.cfs_period_us": "100000\n"})
        assert cgroups.cpu_quota(tmp_path) is None
        write(tmp_path, {f"{folder}/cpu.cfs_quota_us": "250000\n"})
        assert cgroups.cpu_quota(tmp_path) == 2.5

    @pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 2), (0.1, 1), (100.0, 8)])
    def test_whole_cores(self, monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
        monkeypatch.setattr(cgroups, "cpu_quota", lambda: quota)
        assert resources._quota_cores(8) == cores


def test_the_smallest_limit_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched_memory, "untouched_bytes", lambda: 0)
    unlimited = resources.available_memory()
    monkeypatch.setattr(cgroups, "available_memory", lambda: 5 * MIB)
    assert resources.available_memory() == 5 * MIB < unlimited
    monkeypatch.setattr(cgroups, "available_memory", lambda: None)
    assert resources.available_memory() > 5 * MIB
