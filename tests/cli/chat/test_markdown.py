"""Markdown blocks, and their display in a terminal while they are streamed."""

import io
import re
import signal
import sys
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from cli.chat.display import answer, live_region
from cli.chat.display.live_region import LiveRegion
from cli.chat.display.markdown import Block, MarkdownPrinter, close_markers, split
from cli.chat.loop import Chat
from cli.chat.options import ChatOutput
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.result import GenerationStream

TEXT = """# Title

Some **bold** and `code` in a paragraph that goes on and on, so that it is wrapped at the end of the line.
- one
- two
  - nested

1. first
2. second 日本語日本語日本語日本語日本語日本語日本語

```python
def f(x):
    return x + 1
```

| a | b |
|---|---|
| 1 | 2 |

> quote

The end.
"""
STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Screen(io.StringIO):
    """A fake terminal that interprets the escape sequences of the redrawn region; holds the screen content."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.lines, self.row = rows, [""], 0

    def write(self, text: str) -> int:
        for chunk in re.findall(r"\x1b\[\d*[A-Z]|\n|\r|[^\x1b\n\r]+", STYLE.sub("", text)):
            if chunk == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif chunk.endswith("A") and chunk.startswith("\x1b"):
                self.row -= int(chunk[2:-1])
                assert self.row >= len(self.lines) - self.rows, "beyond the upper end of the screen"
            elif chunk == "\x1b[J":
                self.lines[self.row :] = [""]
            elif chunk != "\r":
                self.lines[self.row] += chunk
        return len(text)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen(rows=24)
    monkeypatch.setattr(live_region, "sys", SimpleNamespace(stdout=screen))
    return screen


def test_blocks() -> None:
    first = [block.source.split("\n")[0] for block in split(TEXT)]
    assert first == [
        "# Title", TEXT.splitlines()[2], "- one", "- two", "1. first", TEXT.splitlines()[8], "```python",
        "| a | b |", "> quote", "The end.",
    ]  # fmt: skip
    assert "".join(block.source for block in split(TEXT)) == TEXT
    assert [block.gap for block in split(TEXT)] == [True, True, True, False, True, False, True, True, True, True]


@pytest.mark.parametrize("text", ["", "\n", "[a]: http://b", "```", "- ", "   "])
def test_incomplete_blocks(text: str) -> None:
    assert "".join(block.source for block in split(text)) == text.strip(" \n") or text.strip()


def test_finished_blocks_do_not_change() -> None:
    for end in range(len(TEXT)):
        finished = split(TEXT[:end])[:-1]
        assert finished == split(TEXT)[: len(finished)] or finished[-1].source.startswith(("|", "#", "1", "-"))


def test_long_code_is_split() -> None:
    code = "```python\n" + "def f():\n    return 1\n\n" * 40 + "```\n"
    blocks = split(code)
    assert len(blocks) > 2
    assert all(block.source.startswith("```python\n") for block in blocks)
    assert sum(block.source.count("return 1") for block in blocks) == 40


@pytest.mark.parametrize(
    ("source", "shown"), [("a **b", "a **b**"), ("a `b", "a `b`"), ("a **", "a"), ("**a** b", "**a** b")]
)
def test_markers_are_closed(source: str, shown: str) -> None:
    assert close_markers(Block(source, False, True)) == shown


@pytest.mark.parametrize("columns", [20, 40, 80])
@pytest.mark.parametrize("step", [1, 3, 17, 1000])
def test_streamed_text_looks_like_the_whole_text(screen: Screen, columns: int, step: int) -> None:
    printer, shown = MarkdownPrinter(columns, colour=True), LiveRegion((columns, 24))
    text, gap = "", False
    for start in range(0, len(TEXT), step):
        text += TEXT[start : start + step]
        blocks = split(text, gap)
        for block in blocks[:-1]:
            shown.commit(printer.lines(block.source, block.gap))
        for last in blocks[-1:]:
            text, gap = last.source, last.gap
            shown.show(printer.lines(close_markers(last), last.gap))
    shown.commit(printer.lines(text, gap))
    whole = [line for block in split(TEXT, False) for line in printer.lines(block.source, block.gap)]
    assert [line.rstrip() for line in screen.lines] == [STYLE.sub("", line).rstrip() for line in whole] + [""]


def test_scrolled_lines_are_not_redrawn(screen: Screen) -> None:
    shown = LiveRegion((40, 24))
    for n in range(1, 60):
        shown.show([f"line {number} of {n}" if number == 0 else f"line {number}" for number in range(n)])
    assert len(screen.lines) == 59
    assert screen.lines[1:] == [f"line {number}" for number in range(1, 59)]


class Interrupt:
    """A trace function that raises SIGINT before the `n`-th line of the modules that draw an answer."""

    def __init__(self, n: int) -> None:
        self.lines_left = n

    def __call__(self, frame: FrameType, event: str, _: object) -> "Interrupt | None":
        if frame.f_code.co_filename not in (answer.__file__, live_region.__file__):
            return None
        if event == "line":
            self.lines_left -= 1
            if not self.lines_left:
                signal.raise_signal(signal.SIGINT)
        return self


def streaming_model(text: str) -> Any:
    """Return a model that answers with `text`, three characters a token."""
    pieces = [Piece(text[start : start + 3], 4) for start in range(0, len(text), 3)]
    model = SimpleNamespace(
        n_ctx=100,
        is_diffusion=False,
        options=SimpleNamespace(ctx_policy="stop", system_prompt="", diffusion_visual=True),
        stream_chat=lambda *_, **__: GenerationStream(iter(pieces), Stats()),
    )
    return SimpleNamespace(model=model, name="fake")


@pytest.mark.parametrize("first", range(1, 6))
def test_an_interrupted_answer_is_shown_once(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(answer, "REDRAW_INTERVAL", 0)
    monkeypatch.setattr(answer, "create_view", lambda **_: answer.RenderedView())
    model = streaming_model("one\n\ntwo three\n\nfour")
    interrupt = Interrupt(first)
    for n_lines in range(first, 1000, 5):
        screen, interrupt = Screen(rows=24), Interrupt(n_lines)
        monkeypatch.setattr(live_region, "sys", SimpleNamespace(stdout=screen))
        chat = Chat(model, ChatOutput(quiet=True))
        chat.is_interactive = True
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            chat.show(chat.conversation.ask("a"))
        finally:
            sys.settrace(before)
        assert "".join(f"{line}\n" for line in screen.lines).split() == chat.conversation.answer.split()
        if interrupt.lines_left > 0:  # the answer has ended
            break
    assert interrupt.lines_left > 0
