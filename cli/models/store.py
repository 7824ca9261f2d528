"""The commands `localinfer pull`, `list` and `rm`: manage models."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.models.loading import fetch_model, fetch_projector, find_or_fetch
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer import paths
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from localinfer.hub.resolve import StoredModel


def pull_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Model names. [default: the default model]")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the files on this machine with their digests.")
    ] = False,
) -> None:
    """Download models.

    A name is an entry of models.toml, hf:OWNER/REPO[:QUANT] on the Hugging Face Hub, or an https URL. Interrupted
    downloads are resumed. Files are verified by their digest if it is known.

    \b
    Examples:
      localinfer pull
      localinfer pull gemma3-270m hf:ggml-org/gemma-3-1b-it-GGUF:Q8_0
      localinfer pull https://example.org/model.gguf#sha256=...
      localinfer pull --verify ollama:llama3.2
    """
    from localinfer.hub import resolve

    status = screen.Status()
    wanted = names or [resolve.model_registry().default]
    for name in wanted:
        resolve.resolve(name)  # check all names before the first download
    for name in wanted:
        screen.note(f"{screen.one_line(name)}: {screen.one_line(str(pull_model(name, status)))}")
        if verify:
            report_verification(name, status)


def report_verification(name: str, status: screen.Status) -> None:
    """Compare the files of a model with their digests, and report the result."""
    from localinfer.hub.pull import verify_model

    with status.busy(f"verifying {screen.one_line(name)}"):
        unknown = verify_model(name, status)
    if unknown:
        screen.warn(f"{screen.one_line(name)}: not verified: no digest of {screen.one_line(str(unknown[0]))} is known")
    else:
        screen.note(f"{screen.one_line(name)}: verified")


def pull_model(name: str, status: screen.Status) -> Path:
    """Return the file of a model name, after checking the hub for a newer version, and download its projector: the one
    that the options of its entry in models.toml name, or the one in its repository."""
    from localinfer.hub import resolve
    from localinfer.hub.model_store import offline_variable

    try:
        path = fetch_model(name, status) if resolve.normalize_hub_url(name).startswith("hf:") else resolve.find(name)
    except resolve.NotDownloadedError:
        path = fetch_model(name, status)
    if projector := resolve.default_options(name).get("mmproj"):
        find_or_fetch(str(projector), status)
    elif not offline_variable():
        fetch_projector(name, status)
    return path


class ModelRow(NamedTuple):
    """A row of the list. `state` describes whether the file is on this machine, completely or partially."""

    name: str
    size: int
    type: str
    state: str
    licence: str = ""
    about: str = ""
    files: tuple[str, ...] = ()
    default: bool = False
    reads: tuple[str, ...] = ()  # beside text: "image", "audio"


def list_command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False) -> None:
    """List known and downloaded models.

    The entries of models.toml come first, then downloads from the Hugging Face Hub and URLs, then the models of
    Ollama and LM Studio.

    \b
    Examples:
      localinfer list
      localinfer list --json
    """
    from localinfer.hub import resolve

    tables = {"models.toml": registry_rows()}
    for store, models in resolve.list_stores():
        title = f"{store.TITLE}: {', '.join(map(str, store.directories()))}"
        tables[screen.one_line(title)] = [store_row(model) for model in models]
    if as_json:
        rows = [row._asdict() | {"store": title.partition(":")[0]} for title, rows in tables.items() for row in rows]
        screen.write(json.dumps(rows, indent=1) + "\n")
        return
    width = screen.output_columns()
    _, _, *lines = [line for title, rows in tables.items() for line in table(title, "<>><<<", map(cells, rows), width)]
    screen.write("".join(f"{line.removeprefix('  ')}\n" for line in lines))
    screen.note_dim(f"* default; downloads: {paths.models_dir()}; your models: {resolve.user_registry_path()}")


def cells(row: ModelRow) -> tuple[str, ...]:
    from localinfer.hub.projectors import kinds_text

    name, size = f"{'*' if row.default else ' '} {row.name}", screen.gib(row.size) if row.size else ""
    reads = f"reads {kinds_text(row.reads)}" if row.reads else ""
    about = "; ".join(filter(None, (row.about, reads)))
    return tuple(map(screen.one_line, (name, size, row.type, row.state, row.licence, about)))


def registry_rows() -> list[ModelRow]:
    """Return a row for each entry of models.toml, downloaded or not."""
    from localinfer.hub import resolve

    known, here = resolve.model_registry(), resolve.list_registry()
    rows = []
    for entry in known.entries.values():
        state = "missing" if entry.path else "not downloaded"
        row = store_row(here[entry.name]) if entry.name in here else ModelRow(entry.name, entry.size, "", state)
        rows.append(row._replace(licence=entry.licence, about=entry.about, default=entry.name == known.default))
    return rows


def store_row(model: "StoredModel") -> ModelRow:
    from localinfer.hub.projectors import find_projector, media_kinds

    whole = model.fraction == 1
    reads = media_kinds(find_projector(model.name, model.files[0])) if whole else ()
    state = "here" if whole else f"{100 * model.fraction:.0f} % here"
    return ModelRow(
        model.name, model.size, file_type(model.files[0]) if whole else "", state, files=(*map(str, model.files),),
        reads=tuple(sorted(reads, reverse=True)),
    )  # fmt: skip


def file_type(path: Path) -> str:
    """Return the quantization type in the metadata of a file, or "?" if it has none."""
    from localinfer.gguf.file_types import FILE_TYPE, file_type_name
    from localinfer.gguf.reader import read_value

    try:
        return file_type_name(read_value(path, FILE_TYPE)) or "?"
    except LocalInferError:
        return "damaged"


def rm_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Model names, as shown by `localinfer list`.")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove downloaded models.

    A name that `cp` or `create` added is removed, too, with a file that `create` made for it. Your own files and the
    downloads of other programs are never removed.

    \b
    Examples:
      localinfer rm gemma3-270m
      localinfer rm --yes hf:ggml-org/gemma-3-1b-it-GGUF:Q8_0
    """
    from localinfer.hub import user_registry
    from localinfer.hub.registry_store import names_of_files

    removals = {name: user_registry.plan_removal(name) for name in names}
    for name, removal in removals.items():
        for file in removal.files:
            screen.note_dim(f"  {screen.one_line(str(file))}")
        if others := [each for each in names_of_files(removal.files) if each != name]:
            screen.note(f"warning: {screen.one_line(name)} is also the file of {', '.join(others)}")
        if not yes and not confirm(f"Remove {screen.one_line(name)}, {screen.mib(removal.size)}?"):
            screen.note(f"{screen.one_line(name)}: not removed")
            continue
        removal.delete()
        screen.note(f"{screen.one_line(name)}: removed, {screen.mib(removal.size)} freed")


def confirm(question: str) -> bool:
    """Ask the user at the terminal and return whether the answer is yes. Raises UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError("cannot ask for confirmation without a terminal; use --yes")
    screen.write_question(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
