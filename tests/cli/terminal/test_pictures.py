"""Pictures in terminals. The package that draws them is replaced by a recorder."""

import sys
from types import ModuleType
from typing import Any

import pytest
from seeing_model import picture

from cli.terminal import pictures, screen


class Drawn:
    sizes: list[tuple[int, int]] = []  # noqa: RUF012

    def __init__(self, image: Any, width: str, height: int) -> None:
        assert (width, height) == ("auto", pictures.ROWS)
        self.sizes.append(image.size)

    def __rich__(self) -> str:
        return "drawn"


class Other:
    """Another way to draw pictures."""


def pass_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in sys.stdin, sys.stdout:
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(screen, "is_redrawable", lambda: True)
    Drawn.sizes.clear()


def install(monkeypatch: pytest.MonkeyPatch, chosen: type) -> None:
    package, module = ModuleType("textual_image"), ModuleType("textual_image.renderable")
    vars(module).update(Image=chosen, SixelImage=Drawn, TGPImage=Other)
    monkeypatch.setitem(sys.modules, "textual_image", package)
    monkeypatch.setitem(sys.modules, "textual_image.renderable", module)


def test_a_terminal_that_draws_pictures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pass_for_a_terminal(monkeypatch)
    install(monkeypatch, Drawn)
    pictures.show_picture(picture())
    assert Drawn.sizes == [(40, 30)]
    assert "drawn" in capsys.readouterr().out


def test_a_picture_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pass_for_a_terminal(monkeypatch)
    install(monkeypatch, Drawn)
    monkeypatch.setattr(Drawn, "__rich__", lambda _: 1 // 0)
    pictures.show_picture(picture())
    assert (len(Drawn.sizes), capsys.readouterr().out) == (1, "")


def test_terminals_that_draw_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pass_for_a_terminal(monkeypatch)
    install(monkeypatch, type("Blocks", (Drawn,), {}))
    pictures.show_picture(picture())
    monkeypatch.setitem(sys.modules, "textual_image", None)
    monkeypatch.setitem(sys.modules, "textual_image.renderable", None)
    pictures.show_picture(picture())
    install(monkeypatch, Drawn)
    monkeypatch.setattr(screen, "is_redrawable", lambda: False)
    pictures.show_picture(picture())
    assert (Drawn.sizes, capsys.readouterr().out) == ([], "")
