"""Display of a streamed answer, in one of three views.

RawView        stdout is a file or a pipe: only the text
PlainView      a terminal, text without rendering
RenderedView   a terminal, with rendered Markdown and reasoning collapsed to one line
"""

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Protocol

from cli.terminal import screen
from localinfer.escaping import terminal_text

if TYPE_CHECKING:
    from cli.chat.display.markdown import MarkdownPrinter
    from cli.terminal.token_coloring import TokenPainter
    from localinfer import Piece

REDRAW_INTERVAL = 60  # time between redraws, as a multiple of the time of one: redrawing takes 1.6 % of the time
REASONING_LINES = 4  # shown lines of reasoning
MIN_COLUMNS = 20  # minimum width for Markdown


class View(Protocol):
    def add(self, piece: "Piece") -> None: ...

    def note(self, line: str) -> None: ...

    def end(self) -> None: ...


def create_view(*, plain: bool, lines_between: bool, painter: "TokenPainter | None" = None) -> View:
    """Return the view for this stdout.

    `lines_between` writes a newline after each answer in a file. A painter, for colours of tokens, disables Markdown.
    """
    if not sys.stdout.isatty():
        return RawView(lines_between)
    if painter:
        return PlainView(painter)
    if plain or not screen.is_redrawable() or shutil.get_terminal_size().columns < MIN_COLUMNS:
        return PlainView()
    return RenderedView()


class RawView:
    def __init__(self, lines_between: bool) -> None:
        self.end_of_answer = "\n" if lines_between else ""

    def add(self, piece: "Piece") -> None:
        if piece.kind == "text":
            screen.write(piece.text)

    def note(self, line: str) -> None:
        screen.note_dim(line)

    def end(self) -> None:
        screen.write(self.end_of_answer)


class PlainView:
    """Plain text on a terminal. Reasoning is dim, in a separate paragraph. A painter colours all pieces."""

    def __init__(self, painter: "TokenPainter | None" = None) -> None:
        self.painter = painter
        self.last_kind = "text"
        self.before = ""  # the last character written

    def add(self, piece: "Piece") -> None:
        if piece.kind == "tag" or not (text := piece.text if self.before else piece.text.lstrip()):
            return
        if self.before and piece.kind != self.last_kind:
            screen.write("\n\n")
            text = text.lstrip()
        if self.painter:
            self.painter.write(piece, text)
        elif piece.kind == "reasoning" and screen.has_color():
            sys.stdout.write("\x1b[2m")
            screen.write(text)
            sys.stdout.write("\x1b[0m")
        else:
            screen.write(text)
        self.last_kind, self.before = piece.kind, text[-1:] or self.before

    def note(self, line: str) -> None:
        self.end()
        screen.note_dim(line)
        self.before = ""

    def end(self) -> None:
        screen.write("\n")


class RenderedView:
    """Rendered Markdown on a terminal.

    Finished blocks are final. The last block is redrawn while it grows, at most as often as REDRAW_INTERVAL permits.
    """

    def __init__(self) -> None:
        from cli.chat.display.live_region import LiveRegion

        self.region = LiveRegion(shutil.get_terminal_size())
        self.printer = self._printer()
        self.text = ""  # the text from the last block that is not final
        self.reasoning = ""
        self.reasoning_start = 0.0
        self.last_drawn = self.draw_seconds = 0.0  # seconds
        self.gap = False  # whether output precedes the text
        self.notes: list[str] = []  # shown below the text while it is streamed

    def add(self, piece: "Piece") -> None:
        if piece.kind == "text":
            self._collapse_reasoning()
            self.text += terminal_text(piece.text)
        elif piece.kind == "reasoning":
            self.reasoning_start = self.reasoning_start or time.monotonic()
            self.reasoning += terminal_text(piece.text)
        if time.monotonic() - self.last_drawn > REDRAW_INTERVAL * self.draw_seconds:
            self._draw()

    def note(self, line: str) -> None:
        self.notes.append(line)

    def end(self) -> None:
        self._commit_all()
        for line in self.notes:
            screen.note_dim(line)

    def _draw(self) -> None:
        began = time.thread_time()
        self._update_size()
        if self.reasoning:
            self.region.show(self._reasoning_lines())
        else:
            self._commit_finished()
        self.last_drawn, self.draw_seconds = time.monotonic(), time.thread_time() - began

    def _commit_finished(self) -> None:
        """Print all blocks except the last one, which may grow."""
        from cli.chat.display.markdown import close_markers, split

        blocks = split(self.text, self.gap)
        for block in blocks[:-1]:
            self.region.commit(self.printer.lines(block.source, block.gap))
            self.printer = self._printer()
        for last in blocks[-1:]:
            self.text, self.gap = last.source, last.gap
            self.region.show(self.printer.lines(close_markers(last), last.gap) + self._footer())

    def _commit_all(self) -> None:
        """Print all remaining text."""
        from cli.chat.display.markdown import split

        self._collapse_reasoning()
        for block in split(self.text, self.gap):
            self.region.commit(self.printer.lines(block.source, block.gap))
            self.gap = True
        self.text = ""

    def _reasoning_lines(self) -> list[str]:
        last = self.reasoning[-2 * REASONING_LINES * self.region.columns :]
        lines = textwrap.wrap(last, self.region.columns // 2 if not last.isascii() else self.region.columns - 2)
        return [dimmed(line) for line in ["thinking ...", *lines[-REASONING_LINES:]]]

    def _footer(self) -> list[str]:
        return [dimmed(line) for note in self.notes for line in ["", *textwrap.wrap(note, self.region.columns - 1)]]

    def _collapse_reasoning(self) -> None:
        if self.reasoning:
            seconds = time.monotonic() - self.reasoning_start
            words = len(self.reasoning.split())
            self.region.commit([dimmed(f"thought for {seconds:.1f} s, {words:,} words")])
            self.reasoning, self.gap = "", True

    def _update_size(self) -> None:
        """Follow the size of the terminal. The current block keeps its width until it ends."""
        self.region.columns, self.region.rows = shutil.get_terminal_size()

    def _printer(self) -> "MarkdownPrinter":
        from cli.chat.display.markdown import MarkdownPrinter

        # After a line of the full width, terminals differ in the position of the cursor.
        return MarkdownPrinter(max(shutil.get_terminal_size().columns - 1, MIN_COLUMNS - 1), screen.has_color())


def dimmed(line: str) -> str:
    return screen.dim(line) if screen.has_color() else line
