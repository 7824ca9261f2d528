"""The documentation: it builds without warnings, its links lead somewhere, and its command lines are valid."""

import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from locations import CHECKOUT

from cli.app import COMMANDS, build_program
from cli.arguments.commands import resolve_command
from cli.arguments.translation import Redirect

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:\w*)\n(.*?)^```|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
NOT_LOCALINFER_ALONE = ("$(", "`")
HEADINGS = re.compile(r"^#+ (.*)$", re.MULTILINE)
SEARCH_TERMS = [
    "speculative decoding", "draft model", "structured output", "JSON schema", "grammar", "tool calling",
    "function calling", "prefix caching", "prompt caching", "continuous batching", "KV cache quantization",
    "context shift", "attention sink", "sliding window", "reasoning", "chat template", "embeddings", "reranking",
    "OpenAI-compatible server", "importance matrix", "LoRA", "GPU", "Apple Silicon", "Docker",
]  # fmt: skip


def command_lines() -> Iterator[str]:
    """Yield each call of localinfer in the code blocks of all pages, without pipes and redirections."""
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text().replace("\\\n", " ")):
            for line in (block[1] or block[2]).splitlines():
                if any(mark in line for mark in NOT_LOCALINFER_ALONE):
                    continue
                with contextlib.suppress(ValueError):  # not a shell command
                    yield from calls(line)


def calls(line: str) -> Iterator[str]:
    """Yield the calls of localinfer in a line of shell."""
    tokens = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    tokens.whitespace_split = True
    words: list[str] = []
    skip = False
    for token in [*tokens, ";"]:
        if set(token) <= set("|;&"):
            if words and Path(words[0]).name == "localinfer":
                yield shlex.join(["localinfer", *words[1:]])
            words = []
        elif set(token) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(token)


LINES = sorted(set(command_lines()))


def test_the_documentation_shows_every_command() -> None:
    shown = {word for line in LINES for word in shlex.split(line)[1:2]}
    assert len(LINES) >= 60
    assert set(COMMANDS) <= shown


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_the_documentation_is_valid(line: str) -> None:
    """Each flag exists and takes these values, and no argument is missing."""
    words = resolve_command(shlex.split(line)[1:], COMMANDS)
    while True:
        try:
            program = build_program(words)
            if words[0].startswith("-"):  # an option of the program itself
                assert words[0] in {name for option in program.params for name in option.opts}
                return
            with program.make_context("localinfer", words[:]) as context:
                program.get_command(context, words[0]).make_context(words[0], words[1:], parent=context)
            return
        except Redirect as other:
            words = other.words


@pytest.mark.parametrize("term", SEARCH_TERMS)
def test_a_search_term_is_in_a_heading_or_in_the_index(term: str) -> None:
    headings = [heading for page in PAGES for heading in HEADINGS.findall(page.read_text())]
    index = (CHECKOUT / "docs" / "index.md").read_text()
    assert any(term.lower() in text.lower() for text in [*headings, index])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_and_headings_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in {slug(heading) for heading in HEADINGS.findall(linked.read_text())}, target


def slug(heading: str) -> str:
    """Return the anchor of a heading as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_readme_is_a_landing_page() -> None:
    assert len((CHECKOUT / "README.md").read_text().splitlines()) <= 130


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="sphinx is not installed (group docs)")
def test_sphinx_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(CHECKOUT / "docs"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=CHECKOUT)
    assert result.returncode == 0, result.stderr[-3000:]
