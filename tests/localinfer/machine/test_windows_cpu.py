"""Cores of Windows machines, in buffers as the system writes them."""

import ctypes
import struct
import sys
from typing import Any

import pytest
from system_library import Function

from localinfer.machine import resources, windows_cpu
from localinfer.machine.windows_cpu import Core


def record_of_core(efficiency_class: int, *masks: tuple[int, int], padding: int = 0) -> bytes:
    """Return a record with the (mask, group) of logical processors."""
    has_siblings = masks[0][0].bit_count() > 1
    body = bytes([has_siblings, efficiency_class]) + bytes(20) + struct.pack("<H", len(masks))
    body += b"".join(struct.pack("<QHHHH", mask, group, 0, 0, 0) for mask, group in masks) + bytes(padding)
    return struct.pack("<II", 0, 8 + len(body)) + body


def record_of_cache() -> bytes:
    """Return a record of another kind, RelationCache."""
    return struct.pack("<II", 2, 60) + b"\xff" * 52


# Two performance cores with two threads each, and four efficiency cores: the first half of a Core Ultra.
HYBRID = b"".join(
    [record_of_core(1, (0b11, 0)), record_of_cache(), record_of_core(1, (0b1100, 0), padding=16)]
    + [record_of_core(0, (1 << number, 0)) for number in range(4, 8)]
)
CORES = [Core(1, frozenset({(0, 0), (0, 1)})), Core(1, frozenset({(0, 2), (0, 3)}))]
CORES += [Core(0, frozenset({(0, number)})) for number in range(4, 8)]


class Kernel32:
    """The functions of a machine with these cores, of which a process may use some."""

    def __init__(self, information: bytes, mask: int = 0xFF) -> None:
        self.information, self.mask = information, mask
        self.GetLogicalProcessorInformationEx = Function(self.write_information)
        self.GetCurrentProcess = Function(lambda: 2**64 - 1)
        self.GetProcessAffinityMask = Function(self.write_mask)

    def write_information(self, relationship: int, buffer: Any, size: Any) -> int:
        assert relationship == 0
        available, size._obj.value = size._obj.value, len(self.information)
        if buffer is None or available < len(self.information):
            return 0
        buffer.raw = self.information
        return 1

    def write_mask(self, process: int, own: Any, system: Any) -> int:
        assert process == 2**64 - 1
        own._obj.value, system._obj.value = self.mask, 0xFF
        return int(self.mask != 0)


def on_windows(monkeypatch: pytest.MonkeyPatch, kernel32: Kernel32) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: kernel32, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)


def test_records_of_cores_are_parsed() -> None:
    assert list(windows_cpu.parse_cores(HYBRID)) == CORES


@pytest.mark.parametrize("end", range(1, 49))
def test_truncated_buffers_end_the_list(end: int) -> None:
    assert list(windows_cpu.parse_cores(HYBRID[:end])) == CORES[: end // 48]


def test_two_groups() -> None:
    information = record_of_core(0, (1, 0)) + record_of_core(0, (1, 1))
    cores = list(windows_cpu.parse_cores(information))
    assert [core.processors for core in cores] == [{(0, 0)}, {(1, 0)}]
    assert windows_cpu.usable_cores(cores, mask=1) == cores, "the mask describes one group"


@pytest.mark.parametrize(
    ("mask", "logical", "performance", "physical"),
    [(0xFF, 8, 4, 2), (0b1111, 4, 4, 2), (0b11110010, 5, 1, 1), (0xF0, 4, 4, 4), (0, 8, 4, 2)],
)
def test_threads_by_default(
    monkeypatch: pytest.MonkeyPatch, mask: int, logical: int, performance: int, physical: int
) -> None:
    on_windows(monkeypatch, Kernel32(HYBRID, mask))
    assert resources.thread_count_steps() == {
        "logical CPUs": 8, "within the affinity mask": logical, "performance cores": performance,
        "physical cores": physical,
    }  # fmt: skip
    assert resources.default_threads.__wrapped__() == physical


def test_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    on_windows(monkeypatch, Kernel32(b""))
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert resources.default_threads.__wrapped__() == 4


def test_macos_counts_performance_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(resources, "_sysctl", {"hw.perflevel0.physicalcpu": 4, "hw.physicalcpu": 8}.get)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert resources.default_threads.__wrapped__() == 4
