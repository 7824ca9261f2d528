"""Markdown rendering in blocks: split a text into blocks and render a block as terminal lines."""

import io
import re
from typing import Any, ClassVar, NamedTuple

from markdown_it import MarkdownIt
from rich import markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.syntax import Syntax
from rich.theme import Theme

CODE_LINES = 30  # longer code blocks are split at a blank line
MARKERS = ("**", "`")  # closed temporarily while the text is streamed
STYLE = re.compile(r"\x1b\[[0-9;]*m")
TRAILING = re.compile(r"[ \t]+((?:\x1b\[[0-9;]*m)*)$")


class Block(NamedTuple):
    """A section of a text whose rendering does not depend on the text after it, unless it is the last block."""

    source: str
    is_code: bool
    gap: bool  # whether a blank line precedes it


def split(text: str, gap: bool = True) -> list[Block]:
    """Split a text into blocks: paragraphs, list items and sections of code blocks.

    `gap` is that of the first block.
    """
    if not text.strip():
        return []
    lines = text.splitlines(keepends=True)
    starts: list[tuple[int, bool, bool]] = []  # line, is code, has a gap
    in_list = False
    for token in BLOCK_PARSER.parse(text):
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
    for number, ((start, is_code, has_gap), end) in enumerate(zip(starts, ends, strict=True)):
        source = "".join(lines[start:end])
        block = Block(source, is_code, gap if number == 0 else has_gap)
        blocks += split_code(block) if is_code else [block]
    return blocks


def split_code(block: Block) -> list[Block]:
    """Split a long code block into several fenced ones, so that a redraw highlights only the last one."""
    head, *lines = block.source.splitlines(keepends=True)
    cut = next((n for n in range(CODE_LINES, len(lines)) if not lines[n - 1].strip() and lines[n][:1].strip()), 0)
    if not cut or lines[cut].startswith(("```", "~~~")):
        return [block]
    fence = re.match(r"\s*([`~]+)", head)
    first = Block(head + "".join(lines[:cut]) + (fence[1] if fence else "```"), True, block.gap)
    return [first, *split_code(Block(head + "".join(lines[cut:]), True, False))]


def close_markers(block: Block) -> str:
    """Return the source of the last block with open markers closed, so that they are not shown while streaming."""
    source = block.source.rstrip()
    if block.is_code:
        return source
    source = source.rstrip("*`#").rstrip()
    for marker in MARKERS:
        if source.count(marker) % 2:
            source += marker
    return source


class MarkdownPrinter:
    """Renders blocks as lines of at most `columns` columns."""

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
        lines = strip_blank_lines(lines)
        return ["", *lines] if gap and lines else lines


def strip_blank_lines(lines: list[str]) -> list[str]:
    seen = [number for number, line in enumerate(lines) if STYLE.sub("", line).strip()]
    return lines[seen[0] : seen[-1] + 1] if seen else []


class Heading(markdown.Heading):
    """A left-aligned, bold heading instead of the centred and boxed one of rich."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        yield self.text


class CodeBlock(markdown.CodeBlock):
    """A highlighted code block without background, border or padding, which would end up in copied text."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)


class ListItem(markdown.ListItem):
    """A list item with a dot after its number."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        width = len(f"{last_number}. ")
        lines = console.render_lines(self.elements, options.update(width=options.max_width - width), style=self.style)
        for index, line in enumerate(lines):
            yield Segment(f"{number}. ".rjust(width) if index == 0 else " " * width)
            yield from line
            yield Segment.line()


class Markdown(markdown.Markdown):
    """The Markdown renderer of rich with the elements above."""

    elements: ClassVar[dict[str, Any]] = markdown.Markdown.elements | {
        "heading_open": Heading, "fence": CodeBlock, "code_block": CodeBlock, "list_item_open": ListItem,
    }  # fmt: skip


def create_block_parser() -> MarkdownIt:
    """Return a parser that finds blocks and skips inline markup."""
    parser = MarkdownIt().enable("table")
    parser.core.ruler.disable("inline")
    return parser


BLOCK_PARSER = create_block_parser()
