"""An answer on its way to the screen, in the three ways there are.

    Raw        stdout is a file or a pipe: the text, and nothing else
    Plain      a terminal that is written to as it comes
    Rendered   a terminal that shows Markdown, and folds thoughts to one line

Each takes the pieces one by one, notes in between, and is told when it is over.
"""

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Protocol

from cli import screen

if TYPE_CHECKING:
    from cli.chat.markdown import Printer
    from cli.surprise import Painter
    from localinfer import Piece

PATIENCE = 60  # a picture is drawn anew when this many times the time has passed that the last one took: 1.6 %
THOUGHT_LINES = 4  # of thoughts that are seen at once
NARROWEST = 20  # columns in which Markdown makes sense


class View(Protocol):
    def take(self, piece: "Piece") -> None: ...

    def note(self, line: str) -> None: ...

    def end(self) -> None: ...


def view(*, plain: bool, lines_between: bool, painter: "Painter | None" = None) -> View:
    """The way for this stdout; `lines_between` answers in a file, where more than one goes there. Markdown and the
    colours of tokens exclude each other.
    """
    if not sys.stdout.isatty():
        return Raw(lines_between)
    if painter:
        return Plain(painter)
    if plain or not screen.is_live() or shutil.get_terminal_size().columns < NARROWEST:
        return Plain()
    return Rendered()


class Raw:
    def __init__(self, lines_between: bool) -> None:
        self.end_of_answer = "\n" if lines_between else ""

    def take(self, piece: "Piece") -> None:
        if piece.kind == "text":
            screen.write(piece.text)

    def note(self, line: str) -> None:
        screen.aside(line)

    def end(self) -> None:
        screen.write(self.end_of_answer)


class Plain:
    """Thoughts are dim, and stand in a paragraph of their own. A painter gives all pieces colours."""

    def __init__(self, painter: "Painter | None" = None) -> None:
        self.painter = painter
        self.last_kind = "text"
        self.before = ""  # the last character

    def take(self, piece: "Piece") -> None:
        if piece.kind == "tag" or not (text := piece.text if self.before else piece.text.lstrip()):
            return
        if self.before and piece.kind != self.last_kind:
            screen.write("\n\n")
            text = text.lstrip()
        if self.painter:
            self.painter.write(piece, text)
        elif piece.kind == "thought" and screen.colourful():
            sys.stdout.write("\x1b[2m")
            screen.write(text)
            sys.stdout.write("\x1b[0m")
        else:
            screen.write(text)
        self.last_kind, self.before = piece.kind, text[-1:] or self.before

    def note(self, line: str) -> None:
        self.end()
        screen.aside(line)
        self.before = ""

    def end(self) -> None:
        screen.write("\n")


class Rendered:
    """Blocks that are finished are printed for good; the last one is drawn anew while it grows.

    How often depends on how long that takes: see PATIENCE.
    """

    def __init__(self) -> None:
        from cli.chat.region import Region

        self.region = Region(shutil.get_terminal_size())
        self.printer = self._printer()
        self.text = ""  # of which not all is printed for good
        self.thoughts = ""
        self.think_began = self.think_ended = 0.0
        self.drawn_at = self.cost = 0.0  # seconds
        self.gap = False  # whether the text goes on behind something else
        self.notes: list[str] = []  # below the text, as long as it comes

    def take(self, piece: "Piece") -> None:
        if piece.kind == "text":
            self._fold()
            self.text += screen.harmless(piece.text)
        elif piece.kind == "thought":
            self.think_began = self.think_began or time.monotonic()
            self.thoughts += screen.harmless(piece.text)
        if time.monotonic() - self.drawn_at > PATIENCE * self.cost:
            self._draw()

    def note(self, line: str) -> None:
        self.notes.append(line)

    def end(self) -> None:
        self._settle()
        for line in self.notes:
            screen.aside(line)

    def _draw(self) -> None:
        began = time.thread_time()
        self._follow_size()
        if self.thoughts:
            self.region.show(self._thought_lines())
        else:
            self._print_finished()
        self.drawn_at, self.cost = time.monotonic(), time.thread_time() - began

    def _print_finished(self) -> None:
        """All blocks but the last one, which may go on."""
        from cli.chat.markdown import closed, split

        blocks = split(self.text, self.gap)
        for block in blocks[:-1]:
            self.region.settle(self.printer.lines(block.source, block.gap))
            self.printer = self._printer()
        for last in blocks[-1:]:
            self.text, self.gap = last.source, last.gap
            self.region.show(self.printer.lines(closed(last), last.gap) + self._footer())

    def _settle(self) -> None:
        """All that there is, for good."""
        from cli.chat.markdown import split

        self._fold()
        for block in split(self.text, self.gap):
            self.region.settle(self.printer.lines(block.source, block.gap))
            self.gap = True
        self.text = ""

    def _thought_lines(self) -> list[str]:
        last = self.thoughts[-2 * THOUGHT_LINES * self.region.columns :]
        lines = textwrap.wrap(last, self.region.columns // 2 if not last.isascii() else self.region.columns - 2)
        return [styled(line) for line in ["thinking ...", *lines[-THOUGHT_LINES:]]]

    def _footer(self) -> list[str]:
        return [styled(line) for note in self.notes for line in ["", *textwrap.wrap(note, self.region.columns - 1)]]

    def _fold(self) -> None:
        if self.thoughts:
            seconds = time.monotonic() - self.think_began
            words = len(self.thoughts.split())
            self.region.settle([styled(f"thought for {seconds:.1f} s, {words:,} words")])
            self.thoughts, self.gap = "", True

    def _follow_size(self) -> None:
        """What is on the screen already keeps its width until its block ends."""
        self.region.columns, self.region.rows = shutil.get_terminal_size()

    def _printer(self) -> "Printer":
        from cli.chat.markdown import Printer

        # A line as wide as the terminal leaves some of them in doubt about where the cursor is.
        return Printer(max(shutil.get_terminal_size().columns - 1, NARROWEST - 1), screen.colourful())


def styled(line: str) -> str:
    return screen.dim(line) if screen.colourful() else line
