"""The command `localinfer mcp`: this machine's models as an MCP server."""

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from cli.arguments.flags import OptionalModelArgument, with_options
from cli.models.loading import default_model, find_or_fetch, require_known_model
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.mcp.library import require_library
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model
    from localinfer.mcp.server.models import Load, Progress
    from localinfer.options.keywords import LoadKeywords

INTERRUPTED = 130  # exit code after Ctrl-C
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_UBATCH_SIZE = 128  # tokens; a cancelled call ends after a micro-batch


@with_options("model", "sampling", "structured", "adapters", without=("ctx_policy", "keep"))
def mcp_command(
    given: Layer,
    *,
    model: OptionalModelArgument = None,
    embedding: Annotated[
        str | None, typer.Option("--embedding", metavar="MODEL", help="Model of the tool `embed`. [default: none]")
    ] = None,
    reranker: Annotated[
        str | None, typer.Option("--reranker", metavar="MODEL", help="Model of the tool `rerank`. [default: none]")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="[HOST:]PORT", help="Serve streamable HTTP at this address, in place of stdio."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Accept requests with this Host header; may be repeated."),
    ] = None,
) -> None:
    """Offer models as an MCP server, to programs such as Claude Desktop and VS Code.

    The tools are `generate`, `embed`, `rerank` and `list_models`. A model is loaded when it is first used. Without
    --http, the program that starts this command talks to it over stdin and stdout. Options apply to all models.

    \b
    Examples:
      localinfer mcp
      localinfer mcp qwen.gguf --embedding minilm.gguf
      localinfer mcp smollm2 --http 127.0.0.1:8090
    """
    require_library("mcp")
    name = model or default_model()
    for each in filter(None, [name, embedding, reranker]):
        require_known_model(each)
    address = parse_address(http) if http is not None else None
    if allow_host and not address:
        raise UsageError("--allow-host: requires --http")
    from localinfer.mcp.server.models import ServedModel
    from localinfer.mcp.server.run import serve_http, serve_stdio, silence_logging
    from localinfer.mcp.server.tools import Models, create_server

    silence_logging()
    load = model_loader({"ubatch_size": DEFAULT_UBATCH_SIZE, **given})
    models = Models(
        generate=ServedModel(name, load), embed=ServedModel(embedding, load) if embedding else None,
        rerank=ServedModel(reranker, load) if reranker else None,
    )  # fmt: skip
    if address:
        with closing(models):
            serve_http(create_server(models), *address, allow_host or (), print_address)
        return
    try:
        with closing(models):
            serve_stdio(create_server(models))
    except (KeyboardInterrupt, SystemExit) as stop:
        exit_at_once(stop)


def exit_at_once(stop: KeyboardInterrupt | SystemExit) -> NoReturn:
    """Exit with the code of a signal. A thread of the library waits for stdin, which the client may keep open, and
    Python would wait for that thread.
    """
    os._exit(stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else INTERRUPTED)


def model_loader(given: Layer) -> "Load":
    """Return a function that loads a model for the server, and downloads it if necessary."""

    def load(name: str, progress: "Progress") -> "Model":
        import localinfer
        from cli.models import sigbus_handler

        find_or_fetch(name, screen.Status())
        model = localinfer.load(name, progress=progress, **cast("LoadKeywords", given))
        sigbus_handler.install(screen.one_line(name))
        return model

    return load


def parse_address(text: str) -> tuple[str, int]:
    """Parse [HOST:]PORT; the host is 127.0.0.1 by default, and an IPv6 address may stand in brackets."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--http: {screen.one_line(text)}: must be PORT or HOST:PORT")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK[0], int(port)


def print_address(url: str) -> None:
    screen.note(f"listening on {url}")
    if not any(f"//{host}:" in url for host in (*LOOPBACK[:2], "[::1]")):
        screen.warn("anyone who can reach this port can use the models")
