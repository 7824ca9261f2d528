"""From the word that a user typed to a loaded model, in sight: what is fetched, and what takes long."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cli import screen
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model
    from localinfer.engine.engine import Engine
    from localinfer.server.shelf import Load


def open_model(name: str, given: Layer, status: screen.Status) -> "Model":
    """Load a model; a known one that is not there yet is fetched first."""
    path = fetched(name, status)
    if draft := given.get("spec_draft_model"):
        fetched(str(draft), status)
    with status.busy(f"loading {screen.one_line(name)}"):
        import localinfer
        from cli import guard

        model = localinfer.load(name, progress=status, **given)
        guard.against_shrinking(screen.one_line(str(path)))
        return model


def loading(given: Layer) -> "Load":
    """Loads models with these options for slots of a `localinfer.server.desk`, which may leave in a prompt's midst."""

    def load(name: str) -> "Model":
        import localinfer
        from cli import guard
        from localinfer.server.slots import leave_if_told

        status = screen.Status()

        def progress(stage: str, done: int, total: int) -> None:
            leave_if_told(stage, done, total)
            if stage != "prefill":
                status(stage, done, total)

        path = fetched(name, status)
        with status.busy(f"loading {screen.one_line(name)}"):
            model = localinfer.load(name, progress=progress, **given)
        guard.against_shrinking(screen.one_line(str(path)))
        return model

    return load


def open_engine(name: str, given: Layer, room: Layer, status: screen.Status) -> "Engine":
    """A model without a tokenizer, for commands that measure it; `room` is what they ask for where no one else does."""
    path = fetched(name, status)
    with status.busy(f"loading {screen.one_line(name)}"):
        from localinfer.engine.engine import Engine
        from localinfer.files.gguf import open_gguf
        from localinfer.models import registry
        from localinfer.options import from_environment, merge

        environment, named = from_environment(os.environ), registry.default_options(name)
        return Engine(open_gguf(path), merge(given, environment, room, named), status)


def fetched(name: str, status: screen.Status) -> Path:
    """The file of a name or path; a known model that is not there yet is fetched."""
    from localinfer.models import registry

    try:
        return registry.find(name)
    except registry.NotFetched:
        return fetch(name, status)


def fetch(name: str, status: screen.Status) -> Path:
    """Bring a model here, or see that it is the latest."""
    from localinfer.models import registry
    from localinfer.models.fetch import pull
    from localinfer.models.stores import require_network

    require_network(screen.one_line(name))
    entry = registry.named(name)
    about = f": {screen.mib(entry.size)}, licence: {entry.licence or 'not known'}" if entry and entry.parts else ""
    screen.note(f"fetching {screen.one_line(name)}{about}")
    try:
        with status.busy("waiting for the server"):
            return pull(name, status)
    except (KeyboardInterrupt, SystemExit):
        status.erase()
        screen.note(f"{screen.one_line(name)}: interrupted; the same command goes on from there")
        raise


def default_model() -> str:
    from localinfer.models import registry

    return registry.catalogue().default
