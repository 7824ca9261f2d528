"""Escape sequences on the Windows console, with a library that records the modes."""

import ctypes
import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from system_library import Function

from cli.terminal import screen, windows_console


class Kernel32:
    """The console functions. `modes` are the modes of the handles that are consoles; old ones refuse sequences."""

    def __init__(self, modes: dict[int, int], *, is_old: bool = False) -> None:
        self.modes, self.is_old = modes, is_old
        self.GetStdHandle, self.GetConsoleMode, self.SetConsoleMode = map(Function, (abs, self.get_mode, self.set_mode))

    def get_mode(self, handle: int, mode: Any) -> int:
        mode._obj.value = self.modes.get(handle, 0)
        return int(handle in self.modes)

    def set_mode(self, handle: int, mode: int) -> int:
        if self.is_old:
            return 0
        self.modes[handle] = mode
        return 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def console_of_this_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TERM", raising=False)
    windows_console.has_escape_sequences.cache_clear()
    yield
    windows_console.has_escape_sequences.cache_clear()


def on_windows(monkeypatch: pytest.MonkeyPatch, kernel32: Kernel32) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: kernel32, raising=False)


def test_console_is_asked_for_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel32 = Kernel32({11: 3, 12: 3})
    on_windows(monkeypatch, kernel32)
    assert screen.is_redrawable()
    assert kernel32.modes == {11: 7, 12: 7}, "stdout and stderr"


def test_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    on_windows(monkeypatch, Kernel32({11: 3, 12: 3}))
    monkeypatch.setenv("TERM", "dumb")
    assert not screen.is_redrawable()


@pytest.mark.parametrize("kernel32", [Kernel32({12: 3}, is_old=True), Kernel32({})], ids=["old console", "pipes"])
def test_no_escape_sequences(monkeypatch: pytest.MonkeyPatch, kernel32: Kernel32) -> None:
    on_windows(monkeypatch, kernel32)
    assert not screen.is_redrawable()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [([(1, 5)], True), ([(1, 0), (1, 0), (1, 5)], True), ([(1, 0), (0, 0)], True), ([(0, 0)], True), (None, False)],
    ids=["data", "data later", "end of the pipe", "a file", "nothing"],
)
def test_input_of_pipes(answers: list[tuple[int, int]] | None, expected: bool) -> None:
    def peek(handle: int, *arguments: Any) -> int:
        assert handle == 77
        result, arguments[3]._obj.value = answers.pop(0) if answers else (1, 0)
        return result

    kernel32 = SimpleNamespace(PeekNamedPipe=Function(peek))
    assert windows_console.pipe_has_input(kernel32, 77, 30 if answers else 0.05) == expected
    assert not answers


def test_other_systems_need_a_name_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert not screen.is_redrawable()
