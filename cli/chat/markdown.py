"""Blocks of Markdown, and the lines that they become on a terminal. Knows nothing of what is on the screen already."""

import io
import re
from typing import Any, ClassVar, NamedTuple

from markdown_it import MarkdownIt
from rich import markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.syntax import Syntax
from rich.theme import Theme

CODE_LINES = 30  # a block of code that becomes longer is cut where a blank line is
MARKERS = ("**", "`")  # what is open while the text still comes is closed
STYLE = re.compile(r"\x1b\[[0-9;]*m")
TRAILING = re.compile(r"[ \t]+((?:\x1b\[[0-9;]*m)*)$")


class Block(NamedTuple):
    """A part of a text that looks the same whatever comes behind it, unless it is the last one."""

    source: str
    is_code: bool
    gap: bool  # a blank line stands above it


def split(text: str, gap: bool = True) -> list[Block]:
    """The blocks of a text: one for a paragraph, for an item of a list, for a stretch of code. `gap` is the first's."""
    if not text.strip():
        return []
    lines = text.splitlines(keepends=True)
    starts: list[tuple[int, bool, bool]] = []  # line, is code, has a gap
    in_list = False
    for token in OUTLINE.parse(text):
        if token.map and token.level == 0 and token.type in ("bullet_list_open", "ordered_list_open"):
            in_list = False
        elif token.map and token.level == 1 and token.type == "list_item_open":
            starts.append((token.map[0], False, not in_list))
            in_list = True
        elif token.map and token.level == 0 and token.nesting >= 0:
            starts.append((token.map[0], token.type == "fence", True))
    starts[:1] = [(0, *starts[0][1:])] if starts else [(0, False, True)]
    ends = [start for start, *_ in starts[1:]] + [len(lines)]
    blocks = []
    for number, ((start, is_code, apart), end) in enumerate(zip(starts, ends, strict=True)):
        source = "".join(lines[start:end])
        first = Block(source, is_code, gap if number == 0 else apart)
        blocks += stretches(first) if is_code else [first]
    return blocks


def stretches(block: Block) -> list[Block]:
    """A long block of code in parts, each of them fenced: nobody wants to wait until all of it is coloured anew."""
    head, *lines = block.source.splitlines(keepends=True)
    cut = next((n for n in range(CODE_LINES, len(lines)) if not lines[n - 1].strip() and lines[n][:1].strip()), 0)
    if not cut or lines[cut].startswith(("```", "~~~")):
        return [block]
    fence = re.match(r"\s*([`~]+)", head)
    first = Block(head + "".join(lines[:cut]) + (fence[1] if fence else "```"), True, block.gap)
    return [first, *stretches(Block(head + "".join(lines[cut:]), True, False))]


def closed(block: Block) -> str:
    """The source of the last block with its markers closed, so that they do not show while the text comes."""
    source = block.source.rstrip()
    if block.is_code:
        return source
    source = source.rstrip("*`#").rstrip()
    for marker in MARKERS:
        if source.count(marker) % 2:
            source += marker
    return source


class Printer:
    """Makes lines of blocks, none wider than `columns`."""

    def __init__(self, columns: int, colour: bool) -> None:
        self.console = Console(
            file=io.StringIO(), width=columns, force_terminal=True, no_color=not colour, highlight=False,
            color_system="standard", legacy_windows=False, emoji=False, markup=False,
            theme=Theme({"markdown.code": "cyan"}),
        )  # fmt: skip

    def lines(self, source: str, gap: bool) -> list[str]:
        with self.console.capture() as captured:
            self.console.print(Markdown(source, hyperlinks=False))
        lines = [TRAILING.sub(r"\1", line) for line in captured.get().splitlines()]
        lines = without_blank_ends(lines)
        return ["", *lines] if gap and lines else lines


def without_blank_ends(lines: list[str]) -> list[str]:
    seen = [number for number, line in enumerate(lines) if STYLE.sub("", line).strip()]
    return lines[seen[0] : seen[-1] + 1] if seen else []


class Heading(markdown.Heading):
    """On the left, in bold; rich centres it, and draws a box around the first kind."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        yield self.text


class Code(markdown.CodeBlock):
    """Coloured, on the terminal's own background, and nothing around it that would be copied, too."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)


class Item(markdown.ListItem):
    """With the dot that belongs to a number: it is text that may be copied."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        width = len(f"{last_number}. ")
        lines = console.render_lines(self.elements, options.update(width=options.max_width - width), style=self.style)
        for place, line in enumerate(lines):
            yield Segment(f"{number}. ".rjust(width) if place == 0 else " " * width)
            yield from line
            yield Segment.line()


class Markdown(markdown.Markdown):
    """As rich has it, but for what is ours above."""

    elements: ClassVar[dict[str, Any]] = markdown.Markdown.elements | {
        "heading_open": Heading, "fence": Code, "code_block": Code, "list_item_open": Item,
    }  # fmt: skip


def outline() -> MarkdownIt:
    """Finds blocks, and does not look into them."""
    parser = MarkdownIt().enable("table")
    parser.core.ruler.disable("inline")
    return parser


OUTLINE = outline()
