"""`localinfer serve`: the command line of the server."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cli import screen
from cli.flags import with_options
from cli.loading import loading
from localinfer.errors import UsageError
from localinfer.options import Layer, from_environment
from localinfer.server.settings import Settings
from localinfer.text import printable

USUAL = Settings()
NEEDED = ("starlette", "uvicorn", "httptools")
ONE_BATCH = 128  # tokens of a prompt that are read before it is seen that a client has gone
AT_A_TIME = 4  # requests


@with_options(
    "model", "sampling", "generation", "speculation", "draft", "chat",
    defaults={"ubatch_size": ONE_BATCH, "parallel": AT_A_TIME},
)  # fmt: skip
def serve_command(
    given: Layer,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="GGUF files or names; none: all that are on this machine."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0 is open to the network, and what ends in .sock "
            "is the path of a Unix socket.",
        ),
    ] = USUAL.host,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: one that is free.")
    ] = USUAL.port,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", metavar="KEY", help="Answer only who knows this; may be given several times. "
            "LOCALINFER_API_KEY keeps it out of the list of processes.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="A file of such keys, one on each line.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name of this machine under which clients may ask."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="ORIGIN", help="Whose web pages may ask: https://example.org, or *."),
    ] = None,
    alias: Annotated[
        str | None, typer.Option("-a", "--alias", metavar="NAME", help="What clients call the model, if it is one.")
    ] = None,
    models_max: Annotated[
        int, typer.Option("--models-max", min=1, metavar="N", help="Models in memory at most.")
    ] = USUAL.models_max,
    queue: Annotated[
        int, typer.Option("--queue", min=0, metavar="N", help="Requests that wait; more are sent away.")
    ] = USUAL.queue,
    timeout: Annotated[
        float, typer.Option("-to", "--timeout", min=0.1, metavar="SECONDS", help="The most that an answer may take.")
    ] = USUAL.timeout,
) -> None:  # fmt: skip
    """Answer other programs, and a page in a browser, over HTTP.

    Speaks as OpenAI's API does, as llama.cpp's server and as Ollama do. Several models are loaded as they are asked
    for. Ctrl-C, and SIGTERM, let answers finish; a second one does not.

    \b
      localinfer serve
      localinfer serve smollm2 --port 8000
      localinfer serve a.gguf b.gguf --api-key secret --host 0.0.0.0
      curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    require_extra()
    if alias and len(models or ()) != 1:
        raise UsageError("--alias: is for one model")
    given = {"ubatch_size": ONE_BATCH, "parallel": AT_A_TIME} | from_environment(os.environ) | given
    settings = Settings(
        host=host, port=port, api_keys=keys(api_key, api_key_file),
        allowed_hosts=tuple(allow_host or ()), allowed_origins=tuple(allow_origin or ()), models_max=models_max,
        parallel=int(str(given["parallel"])), queue=queue, timeout=timeout,
    )  # fmt: skip
    from localinfer.server import run
    from localinfer.server.app import application
    from localinfer.server.shelf import Shelf

    shelf = Shelf(models or (), loading(given), models_max, alias)
    with run.listening(settings) as opened:
        if models:
            shelf.model(shelf.offered()[0])  # what is wrong with it, is wrong now
        address = f"unix:{host}" if settings.is_path else f"http://{bracketed(host)}:{opened.getsockname()[1]}"
        run.serve(application(shelf, settings), opened, lambda: tell(address, settings))


def keys(given: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """Who knows one of these may ask. UsageError for an empty key, and a file that cannot be read, or has none."""
    if given is None and file is None and "LOCALINFER_API_KEY" in os.environ:
        given = [os.environ["LOCALINFER_API_KEY"]]
    if not all(map(str.strip, given or ())):
        raise UsageError("--api-key: is empty")
    if file is None:
        return tuple(given or ())
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--api-key-file: {printable(str(file))}: {what}") from None
    if not any(lines):
        raise UsageError(f"--api-key-file: {printable(str(file))}: there is no key in it")
    return (*(given or ()), *filter(None, lines))


def bracketed(host: str) -> str:
    """As addresses have it: colons are for ports."""
    return f"[{host}]" if ":" in host else host


def require_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve: needs {' and '.join(missing)}: python -m pip install 'localinfer[serve]'")


def tell(address: str, settings: Settings) -> None:
    screen.note(f"listening on {address}")
    is_here = settings.is_path or settings.host in ("localhost", "::1") or settings.host.startswith("127.")
    if not is_here and not settings.api_keys:
        screen.warn("whoever reaches this port can use it: --api-key asks for a key")
