"""`localinfer pull`, `list` and `rm`: the models that have a name."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli import screen
from cli.loading import fetch
from cli.tables import table
from localinfer import paths
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from localinfer.models.registry import Listed

FILE_TYPE = "general.file_type"
GUESSED = 1024  # a flag in the number of a file's type: whoever wrote it was not sure


def pull_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which ones; none: the default one.")
    ] = None,
) -> None:
    """Fetch models by name, so that they are there when they are needed.

    A name is one of models.toml, hf:OWNER/REPO[:QUANT] of the Hugging Face hub, or an address. What was interrupted
    goes on where it was, and nothing is taken for whole that is not: a digest proves it, where one is known.

    \b
      localinfer pull
      localinfer pull gemma3-270m hf:ggml-org/gemma-3-1b-it-GGUF:Q8_0
      localinfer pull https://example.org/model.gguf#sha256=...
    """
    from localinfer.models import registry

    status = screen.Status()
    wanted = names or [registry.catalogue().default]
    for name in wanted:
        registry.placed(name)  # all make sense before the first is fetched
    for name in wanted:
        screen.note(f"{screen.one_line(name)}: {screen.one_line(str(brought(name, status)))}")


def brought(name: str, status: screen.Status) -> Path:
    """The file of a name. The hub is asked whether there is a newer one."""
    from localinfer.models import registry

    if registry.as_hub_name(name).startswith("hf:"):
        return fetch(name, status)
    try:
        return registry.find(name)
    except registry.NotFetched:
        return fetch(name, status)


class Row(NamedTuple):
    """One model in the list. `state` says where it is, or how much of it."""

    name: str
    size: int
    type: str
    state: str
    licence: str = ""
    about: str = ""
    files: tuple[str, ...] = ()
    default: bool = False


def list_command(as_json: Annotated[bool, typer.Option("--json", help="Write one JSON array.")] = False) -> None:
    """Show the models that have a name, and which are on this machine.

    Names of models.toml come first, then what the Hugging Face cache, addresses, Ollama and LM Studio have here.
    """
    from localinfer.models import registry

    shelves = {"models.toml": rows_of_names()}
    for store, models in registry.listed():
        title = f"{store.TITLE}: {', '.join(map(str, store.folders()))}"
        shelves[screen.one_line(title)] = [row_of(model) for model in models]
    if as_json:
        rows = [row._asdict() | {"store": title.partition(":")[0]} for title, rows in shelves.items() for row in rows]
        screen.write(json.dumps(rows, indent=1) + "\n")
        return
    _, _, *lines = [line for title, rows in shelves.items() for line in table(title, "<>><<<", map(cells, rows))]
    screen.write("".join(f"{line.removeprefix('  ')}\n" for line in lines))
    screen.aside(f"* default; fetched to {paths.models_dir()}; models of your own: {registry.user_toml()}")


def cells(row: Row) -> tuple[str, ...]:
    name, size = f"{'*' if row.default else ' '} {row.name}", screen.mib(row.size) if row.size else ""
    return tuple(map(screen.one_line, (name, size, row.type, row.state, row.licence, row.about)))


def rows_of_names() -> list[Row]:
    """The names of models.toml, whether their files are here or not."""
    from localinfer.models import registry

    known, here = registry.catalogue(), registry.listed_names()
    rows = []
    for entry in known.entries.values():
        state = "missing" if entry.path else "to fetch"
        row = row_of(here[entry.name]) if entry.name in here else Row(entry.name, entry.size, "", state)
        rows.append(row._replace(licence=entry.licence, about=entry.about, default=entry.name == known.default))
    return rows


def row_of(model: "Listed") -> Row:
    whole = model.share == 1
    state = "here" if whole else f"{100 * model.share:.0f} % here"
    return Row(model.name, model.size, type_of(model.files[0]) if whole else "", state, files=(*map(str, model.files),))


def type_of(path: Path) -> str:
    """What the file says that it is quantized to; "?" if it says nothing."""
    from localinfer.files.gguf import peek
    from localinfer.quantizing.recipes import RECIPES

    try:
        number = peek(path, FILE_TYPE)
    except LocalInferError:
        return "damaged"
    known = {recipe.number: name for name, recipe in RECIPES.items()}
    return known.get(number & ~GUESSED, "?") if isinstance(number, int) else "?"


def rm_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which ones, as `localinfer list` shows them.")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Remove models that localinfer has fetched.

    Files of your own, and what other programs have fetched, stay where they are.

    \b
      localinfer rm gemma3-270m
      localinfer rm --yes hf:ggml-org/gemma-3-1b-it-GGUF:Q8_0
    """
    from localinfer.models import registry

    removals = {name: registry.removal(name) for name in names}
    for name, removal in removals.items():
        for file in removal.files:
            screen.aside(f"  {screen.one_line(str(file))}")
        if not yes and not agreed(f"Remove {screen.one_line(name)}, {screen.mib(removal.size)}?"):
            screen.note(f"{screen.one_line(name)}: stays")
            continue
        removal.carry_out()
        screen.note(f"{screen.one_line(name)}: removed, {screen.mib(removal.size)} are free again")


def agreed(question: str) -> bool:
    """Whether somebody at the terminal says yes. UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: --yes removes without a question")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
