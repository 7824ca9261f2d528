"""The code blocks and command lines of the documentation.

    for line in command_lines(page):
        print(line.number, line.text)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from locations import CHECKOUT

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(localinfer [^`\n]+)`")
COMMENT = re.compile(r"(^|\s+)# .*")


@dataclass(frozen=True)
class Example:
    """A code block, or a line of one."""

    page: Path
    number: int  # of its first line
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.number}: {self.text}"


def code_blocks(page: Path, language: str | None = None) -> Iterator[Example]:
    """Yield the blocks in a language, or all, without their fences."""
    content = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(content):
        if language in (None, found[1]):
            yield Example(page, content[: found.start()].count("\n") + 2, found[1], found[2])


def command_blocks(page: Path) -> Iterator[list[Example]]:
    """Yield the command lines of each block in bash, without comments, then those in running text, one by one."""
    for block in code_blocks(page, "bash"):
        commands, number = [], block.number
        for line in re.split(r"(?<!\\)\n", block.text):
            if text := COMMENT.sub("", line).strip():
                commands.append(Example(page, number, "bash", text))
            number += 1 + line.count("\n")
        yield commands
    content = page.read_text(encoding="utf-8")
    for found in INLINE.finditer(BLOCK.sub(lambda block: "\n" * block[0].count("\n"), content)):
        if len(found[1].split()) > 2:
            yield [Example(page, content[: content.index(found[0])].count("\n") + 1, "inline", found[1])]


def command_lines(page: Path) -> list[Example]:
    return [line for block in command_blocks(page) for line in block]
