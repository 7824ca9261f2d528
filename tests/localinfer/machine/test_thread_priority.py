"""Threads that stay on performance cores: the calls of macOS and Windows, with libraries that record them."""

import ctypes
import struct
import sys
import threading
from typing import Any

import numpy as np
import pytest

from localinfer.machine import thread_priority
from localinfer.machine.thread_priority import ThreadPowerThrottlingState
from localinfer.runtime.thread_pool import POOL_KERNELS, ThreadPool

CURRENT_THREAD = 2**64 - 2  # the pseudo handle that GetCurrentThread returns


class Function:
    """A function of a library: it records its arguments, converted as ctypes does, and returns `result`."""

    def __init__(self, result: int) -> None:
        self.result, self.calls = result, list[tuple[Any, ...]]()
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> int:
        assert len(arguments) == len(self.argtypes)
        for kind, argument in zip(self.argtypes, arguments, strict=True):
            kind.from_param(argument)
        self.calls.append(tuple(getattr(each, "_obj", each) for each in arguments))
        return self.result


class Library:
    """The functions of macOS and Windows, in one library."""

    def __init__(self, result: int = 0) -> None:
        self.pthread_set_qos_class_self_np = Function(result)
        self.GetCurrentThread, self.SetThreadInformation = Function(CURRENT_THREAD), Function(result)


def on_system(monkeypatch: pytest.MonkeyPatch, platform: str, library: object) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: library, raising=False)


@pytest.mark.parametrize(("result", "accepted"), [(0, True), (1, False)])
def test_macos(monkeypatch: pytest.MonkeyPatch, result: int, accepted: bool) -> None:
    library = Library(result)
    on_system(monkeypatch, "darwin", library)
    assert thread_priority.prefer_performance_cores() == accepted
    assert library.pthread_set_qos_class_self_np.calls == [(0x21, 0)]


@pytest.mark.parametrize(("result", "accepted"), [(1, True), (0, False)])
def test_windows(monkeypatch: pytest.MonkeyPatch, result: int, accepted: bool) -> None:
    library = Library(result)
    on_system(monkeypatch, "win32", library)
    assert thread_priority.prefer_performance_cores() == accepted
    [(thread, kind, state, size)] = library.SetThreadInformation.calls
    assert (thread, kind, size) == (CURRENT_THREAD, 3, 12)
    assert isinstance(state, ThreadPowerThrottlingState)
    assert bytes(state) == struct.pack("<III", 1, 1, 0), "version, control mask, state mask"


@pytest.mark.parametrize("platform", ["darwin", "win32", "linux"])
def test_system_without_these_functions(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    on_system(monkeypatch, platform, object())
    assert not thread_priority.prefer_performance_cores()


def test_every_thread_of_a_pool_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[str]()
    monkeypatch.setattr(
        "localinfer.runtime.thread_pool.prefer_performance_cores", lambda: asked.add(threading.current_thread().name)
    )
    pool = ThreadPool(dict.fromkeys(POOL_KERNELS, 0), np.zeros(1, np.int64), np.zeros(1, np.int64), [0, 0])
    pool.close()
    assert asked == {"localinfer-0", "localinfer-1"}
