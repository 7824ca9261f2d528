"""Model loading for commands: download the model if necessary, load it and show progress."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.options import Layer, from_environment, from_keywords, merge

if TYPE_CHECKING:
    from localinfer import Model
    from localinfer.options.keywords import LoadKeywords
    from localinfer.runtime.engine import Engine
    from localinfer.server.models.model_cache import Load


def open_model(name: str, given: Layer, status: screen.Status) -> "Model":
    """Load a model. A known model that is not on this machine is downloaded first, with its projector."""
    find_or_fetch_with_projector(name, given, status)
    if draft := given.get("spec_draft_model"):
        find_or_fetch(str(draft), status)
    with status.busy(f"loading {screen.one_line(name)}"):
        import localinfer
        from cli.models import sigbus_handler

        model = localinfer.load(name, progress=status, **cast("LoadKeywords", given))
        sigbus_handler.install(screen.one_line(name))
        return model


def model_loader(given: Layer) -> "Load":
    """Return a function that loads models for the slots of `localinfer.server.dispatcher`.

    The progress callback of these models stops a request whose client has disconnected, and a load that is cancelled.
    """

    def load(name: str) -> "Model":
        import localinfer
        from cli.models import sigbus_handler
        from localinfer.server.models.load_progress import report_load_progress
        from localinfer.server.slots import STOPPABLE_STAGES, stop_if_cancelled

        status = screen.Status()

        def progress(stage: str, done: int, total: int) -> None:
            stop_if_cancelled(stage, done, total)
            report_load_progress(stage, done, total)
            if stage not in STOPPABLE_STAGES:
                status(stage, done, total)

        find_or_fetch_with_projector(name, given, status)
        with status.busy(f"loading {screen.one_line(name)}"):
            model = localinfer.load(name, progress=progress, **cast("LoadKeywords", given))
        sigbus_handler.install(screen.one_line(name))
        return model

    return load


def open_engine(name: str, given: Layer, defaults: Layer, status: screen.Status) -> "Engine":
    """Open a model without its tokenizer, for commands that measure it.

    `defaults` apply where neither flags nor environment variables set an option.
    """
    find_or_fetch(name, status)
    with status.busy(f"loading {screen.one_line(name)}"):
        from cli.models import sigbus_handler
        from localinfer import file_operations

        engine = file_operations.open_engine(name, cast("LoadKeywords", given), defaults, status)
        sigbus_handler.install(screen.one_line(name))
        return engine


def find_or_fetch(name: str, status: screen.Status) -> Path:
    """Return the file of a model name or path. A known model that is not on this machine is downloaded."""
    from localinfer.hub import resolve

    try:
        path = resolve.find(name)
    except resolve.NotDownloadedError:
        path = fetch_model(name, status)
    screen.name_model_file(str(path), name)
    return path


def find_or_fetch_with_projector(name: str, given: Layer, status: screen.Status) -> None:
    """Download a model that is not on this machine, and the projector that the options name or that belongs to it."""
    from localinfer.hub import resolve

    is_here = True
    try:
        resolve.find(name)
    except resolve.NotDownloadedError:
        is_here = False
    find_or_fetch(name, status)
    options = merge(from_keywords(given), from_environment(os.environ), resolve.default_options(name))
    if options.mmproj:
        find_or_fetch(options.mmproj, status)
    elif not is_here and options.mmproj_auto:
        fetch_projector(name, status)


def fetch_projector(name: str, status: screen.Status) -> None:
    """Download the projector of a model of the hub, if its repository has one."""
    from localinfer.hub.pull import pull_projector

    with status.busy("looking for a projector"):
        pull_projector(name, status)


def require_known_model(name: str) -> None:
    """Raise ModelNotFoundError unless the model is on this machine or can be downloaded."""
    from localinfer.hub import resolve

    with contextlib.suppress(resolve.NotDownloadedError):
        resolve.find(name)


@contextlib.contextmanager
def missing_model_first(name: str | None) -> Iterator[None]:
    """Report a missing model rather than another error of usage in the with block, such as a missing prompt."""
    try:
        yield
    except UsageError:
        if name is not None:
            require_known_model(name)
        raise


def fetch_model(name: str, status: screen.Status) -> Path:
    """Download a model, or check that the local copy is the latest."""
    from localinfer.hub import resolve
    from localinfer.hub.model_store import require_network
    from localinfer.hub.pull import digests, pull

    require_network(screen.one_line(name))
    entry = resolve.registry_entry(name)
    about = f": {screen.gib(entry.size)}, licence: {entry.licence or 'unknown'}" if entry and entry.size else ""
    screen.note(f"fetching {screen.one_line(name)}{about}")
    try:
        with status.busy("waiting for the server"):
            path = pull(name, status)
    except (KeyboardInterrupt, SystemExit):
        status.erase()
        screen.note(f"{screen.one_line(name)}: interrupted; run the same command to resume")
        raise
    if "" in digests(name).values():
        screen.note(f"{screen.one_line(name)}: the server names no digest, so the content is not verified")
    return path


def default_model() -> str:
    from localinfer.hub import resolve

    return resolve.model_registry().default
