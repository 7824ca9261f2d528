"""Add rows of new architectures to the documentation.

    python tests/making/make_architecture_tables.py

The table of docs/architectures.md gets a row for each architecture that it lacks, from the docstring of its module, and
that of docs/converting-checkpoints.md one with its classes. Existing rows are written by hand, and stay.
"""

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from locations import CHECKOUT

from localinfer import architectures
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures import FAMILIES

ROW = re.compile(r"^\| `([^`]+)`.*\n", re.MULTILINE)
PAGES = {name: CHECKOUT / name for name in ("docs/architectures.md", "docs/converting-checkpoints.md")}


def pages() -> dict[Path, str]:
    """Return the pages with the rows that they lack."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
    changed = {
        "docs/architectures.md": with_architectures(texts["docs/architectures.md"]),
        "docs/converting-checkpoints.md": with_classes(texts["docs/converting-checkpoints.md"]),
    }
    return {PAGES[name]: text for name, text in changed.items()}


def with_architectures(page: str) -> str:
    """Return the page with a row for each architecture, before the first row whose name is greater."""
    table_end = page.index("\n\n", page.index("| architecture |"))
    for name, about in descriptions().items():
        rows = [row for row in ROW.finditer(page) if row.start() < table_end]
        if name not in {row[1] for row in rows}:
            at = next((row.start() for row in rows if row[1] > name), rows[-1].end())
            line = f"| `{name}` | {about} |\n"
            page, table_end = page[:at] + line + page[at:], table_end + len(line)
    return page


def with_classes(page: str) -> str:
    """Return the page with a row of classes at the end of its first table for each architecture that it lacks."""
    start = page.index("| GGUF |")
    at = page.index("\n\n", start) + 1
    listed = {name for row in page[start:at].splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    lacking: dict[str, list[str]] = {}
    for family in FAMILIES:
        own = [each for each in vars(family).values() if isinstance(each, Architecture) and each.name not in listed]
        for name, entry in family.BY_CLASS.items():
            chosen = own[:1] if callable(entry) else [each for each in own if each is entry]
            for architecture in chosen:
                lacking.setdefault(architecture.name, []).append(f"`{name}`")
    rows = "".join(f"| `{name}` | {', '.join(classes)} |\n" for name, classes in lacking.items())
    return page[:at] + rows + page[at:]


def descriptions() -> Mapping[str, str]:
    """Return the first paragraph of the docstring of each architecture's module, by GGUF's name."""
    names = {
        re.sub(r"[-.]", "_", each.name): each.name
        for family in FAMILIES for each in vars(family).values() if isinstance(each, Architecture)
    }  # fmt: skip
    found = {}
    for module in architectures.known():
        source = Path(architectures.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
        found[names.get(module, module)] = " ".join(about.split()).replace("|", "\\|")
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
