"""The command `localinfer cache`: the evaluated prompts that are stored on disk."""

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.models.store import confirm
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer import paths
from localinfer.errors import UsageError
from localinfer.escaping import terminal_text

if TYPE_CHECKING:
    from localinfer.prefix_store.directory import StoredModel

NOTHING = "no prompts are stored"
GIB = 2**30


def cache_command(
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="list, prune or clear.")] = "list",
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="For clear: parts of the models' names. [default: all]"),
    ] = None,
    size: Annotated[
        float | None, typer.Option("--max-size", min=0, metavar="GIB", help="For prune: the size to be kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array, for list.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Show or remove the evaluated prompts on disk.

    Evaluated prompts of 512 tokens or more are stored on disk, so that later runs need not evaluate them again. `list`
    shows how much is stored for each model, and how many tokens were restored. `prune` removes those that were used
    least recently, `clear` all prompts of a model. No model is removed.

    \b
    Examples:
      localinfer cache
      localinfer cache prune --max-size 2
      localinfer cache clear smollm2 --yes
    """
    from localinfer.prefix_store.directory import stored_models, trim

    root = paths.prefixes_dir()
    found = stored_models(root)
    if models and action != "clear":
        raise UsageError(f"{screen.one_line(models[0])}: only for `localinfer cache clear`")
    if (size is not None) != (action == "prune"):
        raise UsageError("--max-size: is for `localinfer cache prune`, which needs it")
    if as_json and action != "list":
        raise UsageError("--json: only for `localinfer cache list`")
    match action:
        case "list" if as_json:
            screen.write(json.dumps([as_object(each) for each in found], indent=1) + "\n")
        case "list":
            show_list(found)
        case "prune":
            left = trim(root, int((size or 0) * GIB))
            screen.note(f"{gib(sum(each.size for each in found) - left)} removed, {gib(left)} left")
        case "clear" if not found:
            screen.note(NOTHING)
        case "clear":
            clear([each for each in found if not models or any(name in model_path(each) for name in models)], yes)
        case _:
            raise UsageError(f"{screen.one_line(action)}: must be list, prune or clear")


def show_list(found: "list[StoredModel]") -> None:
    """Print a table of what is stored."""
    by_model = defaultdict[str, list["StoredModel"]](list)  # those of other settings are in directories of their own
    for each in found:
        if each.files:
            by_model[model_path(each)].append(each)
    rows = []
    for path, group in by_model.items():
        restored = [n_tokens for each in group for n_tokens in each.restored]
        used = time.localtime(max(each.used for each in group))
        rows.append((
            terminal_text(Path(path).name),
            gib(sum(each.size for each in group)),
            time.strftime("%Y-%m-%d %H:%M", used),
            f"{sum(restored):,} in {len(restored):,}",
        ))  # fmt: skip
    header = ("model", "size", "last used", "tokens restored")
    for line in [*table("", "<>>>", [header, *rows])][2:] if rows else []:
        screen.write(line.strip() + "\n")
    screen.note_dim(f"prompts are in {screen.one_line(str(paths.prefixes_dir()))}" if rows else NOTHING)


def clear(found: "list[StoredModel]", yes: bool) -> None:
    """Remove what is stored for models, after a confirmation."""
    from localinfer.prefix_store.directory import remove

    if not found:
        raise UsageError("no prompts of such a model are stored")
    question = f"Remove the stored prompts of {', '.join(screen.one_line(model_path(each)) for each in found)}?"
    if not yes and not confirm(question):
        return
    for each in found:
        remove(each)
    screen.note(f"{gib(sum(each.size for each in found))} removed")


def as_object(model: "StoredModel") -> dict[str, object]:
    return {
        "model": model_path(model), "settings": model.about.get("settings"), "bytes": model.size, "used": model.used,
        "files": len(model.files), "restored": model.restored, "path": str(model.directory),
    }  # fmt: skip


def model_path(model: "StoredModel") -> str:
    """Return the path of the model that prompts were evaluated with."""
    return str(model.about.get("model", "?"))


def gib(n_bytes: float) -> str:
    return f"{n_bytes / GIB:.2f} GiB"
