"""The documentation: it builds without warnings, its links lead somewhere, and what it names exists.

test_documented_commands.py runs its examples.
"""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import make_architecture_tables
import pytest
from code_examples import PAGES, command_lines
from locations import CHECKOUT

import localinfer
from localinfer.multimodal import encoders as image_encoders
from localinfer.multimodal.sounds import encoders as sound_encoders
from localinfer.server.requests import request_fields

HEADINGS = re.compile(r"^#+ (.*)$", re.MULTILINE)
SEARCH_TERMS = [
    "speculative decoding", "draft model", "structured output", "JSON schema", "grammar", "tool calling",
    "function calling", "MCP servers", "prefix caching", "prompt caching", "continuous batching",
    "KV cache quantization", "context shift", "attention sink", "sliding window", "reasoning",
    "chat template", "embeddings", "reranking",
    "OpenAI-compatible server", "importance matrix", "LoRA", "GPU", "Apple Silicon", "Docker", "images", "audio",
]  # fmt: skip


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


def test_every_encoder_is_in_the_list() -> None:
    page = (CHECKOUT / "docs" / "architectures.md").read_text()
    for name in [*image_encoders.known(), *sound_encoders.known()]:
        assert re.search(rf"`{re.escape(name).replace('_', '[-._]')}(_merger)?`", page), name


def test_every_architecture_is_in_the_tables() -> None:
    """If not: python tests/making/make_architecture_tables.py"""
    for path, text in make_architecture_tables.pages().items():
        assert path.read_text(encoding="utf-8") == text


def test_readme_is_a_landing_page() -> None:
    assert len((CHECKOUT / "README.md").read_text().splitlines()) <= 130


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="sphinx is not installed (group docs)")
def test_sphinx_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(CHECKOUT / "docs"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=CHECKOUT)
    assert result.returncode == 0, result.stderr[-3000:]


def test_named_files_exist() -> None:
    """Each path of this repository that a page names exists."""
    pattern = re.compile(r"(?<![\w/.-])(?:tests|localinfer|quant|cli|docs)/[\w./-]*\w")
    for page in [*PAGES, CHECKOUT / "SECURITY.md"]:
        named = set(pattern.findall(page.read_text(encoding="utf-8")))
        missing = [name for name in named if not (CHECKOUT / name).exists()]
        assert not missing, f"{page.name}: {missing}"


COMMITS = re.findall(r"Commit `(\w+)`\s+\"([^\"]+)\"", (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def history() -> None:
    """Skip the test where the history is not available."""
    if shutil.which("git") is None or git("rev-parse", "--is-inside-work-tree").returncode:
        pytest.skip("not a clone of the repository")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("a shallow clone has no history")


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("commit", "subject"), COMMITS)
def test_example_commits_are_ancestors(commit: str, subject: str) -> None:
    """A commit that only an unmerged branch of this clone has is missing in every other clone."""
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
    actual = git("show", "--no-patch", "--format=%s", commit).stdout.strip()
    assert actual.startswith(subject.removesuffix("...").strip())


CODE = [path for folder in ("localinfer", "quant", "cli") for path in (CHECKOUT / folder).rglob("*.py")]


def test_prompts_of_the_prefix_store_begin_with_the_same_file() -> None:
    """In a prompt -p comes before -f, so different questions in -p would have no prefix in common."""
    page = CHECKOUT / "docs" / "sessions-and-prompt-caching.md"
    commands = [line.text for line in command_lines(page) if "generate" in line.text]
    questions = [shlex.split(text) for text in commands if "Which flags" in text]
    assert len(questions) == 2
    for words in questions:
        assert words[0] == "echo"
        assert "-f" in words
        assert not {"-p", "--prompt"} & set(words)


def test_readme_denies_no_endpoint_of_the_server_page() -> None:
    limits = (CHECKOUT / "README.md").read_text().partition("## What does not work yet")[2].partition("\n## ")[0]
    endpoints = (CHECKOUT / "docs" / "server.md").read_text().partition("## Endpoints")[2].partition("\n## ")[0]
    for endpoint, denial in (("/rerank", "reranking"), ("/infill", "fill-in-the-middle")):
        assert endpoint in endpoints
        assert denial not in limits
    assert limits


def test_names_in_the_glossary_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in CODE)
    files = {path.name for path in CODE} | {f"{path.parent.name}/" for path in CODE}
    terms = (CHECKOUT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("## Prose")[0]
    named = {
        name for row in re.findall(r"^\|.*\|([^|]*)\|$", terms, re.MULTILINE) for name in re.findall("`(.+?)`", row)
    }
    assert len(named) > 50
    assert [name for name in sorted(named - files) if not re.search(rf"(?<!\w){re.escape(name)}\b", source)] == []


def test_files_in_the_table_of_folders_exist() -> None:
    rows = re.findall(r"^\| `(\w+/.*?)`.*? \| (.*) \|$", (CHECKOUT / "docs" / "design.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    for folder, contents in rows:
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", contents):
            assert (CHECKOUT / folder / name).exists() or (CHECKOUT / name).exists(), f"{folder}: {name}"


def test_api_reference_has_every_public_name() -> None:
    reference = (CHECKOUT / "docs" / "api.md").read_text(encoding="utf-8")
    errors = {name for name in localinfer.__all__ if name.endswith("Error")}
    documented = set(re.findall(r":: localinfer\.(\w+)", reference)) - {"errors"}
    assert documented == set(localinfer.__all__) - errors
    assert ".. automodule:: localinfer.errors" in reference


def test_server_page_has_every_sampling_field() -> None:
    page = (CHECKOUT / "docs" / "server.md").read_text(encoding="utf-8")
    assert [name for name in request_fields.SAMPLING if f"`{name}`" not in page] == []
