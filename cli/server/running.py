"""The commands `localinfer ps` and `stop`: models that a running server has loaded."""

import http.client
import json
import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.arguments.flags import with_options
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import LocalInferError
from localinfer.server.settings import Settings

TIMEOUT = 10.0  # seconds
FOREVER = "2200-"  # localinfer's time for models without keep_alive
HEADINGS = ("NAME", "SIZE", "CONTEXT", "UNTIL")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the server listens."""

    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address of the server.")] = Settings().host
    port: Annotated[int, typer.Option("--port", min=1, max=65535, metavar="N", help="Port of the server.")] = (
        Settings().port
    )

    @property
    def name(self) -> str:
        return f"http://{self.host}:{self.port}"

    def request(self, method: str, path: str, fields: object = None) -> Any:
        """Return the JSON response of the server.

        Raises ConnectionRefusedError if there is no server, LocalInferError for any other failure.
        """
        key = os.environ.get("LOCALINFER_API_KEY")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, json.dumps(fields), {"Authorization": f"Bearer {key}"} if key else {})
            response = connection.getresponse()
            content = json.loads(response.read())
        except ConnectionRefusedError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LocalInferError(f"{self.name}: {getattr(error, 'strerror', None) or 'no valid response'}") from None
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise LocalInferError(f"{self.name}: {screen.one_line(str(content.get('error', response.reason)))}")
        return content


@with_options()
def ps_command(
    server: ServerOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the models that a running server has loaded.

    The server may also be Ollama's, with --port 11434. LOCALINFER_API_KEY is sent if it is set.

    \b
    Examples:
      localinfer ps
    """
    try:
        models = server.request("GET", "/api/ps")["models"]
    except ConnectionRefusedError:
        models = []
        screen.note_dim(f"no server is running at {server.name}")
    if as_json:
        screen.write(json.dumps(models, indent=1) + "\n")
        return
    rows = [
        (each["name"], screen.mib(each["size"]), str(each.get("context_length", "")), expiry(each["expires_at"]))
        for each in models
    ]
    cells = [HEADINGS, *(tuple(map(screen.one_line, row)) for row in rows)]
    screen.write("".join(f"{line.strip()}\n" for line in list(table("", "<>><", cells))[2:]))


def expiry(moment: str) -> str:
    """Return the time when a model is unloaded; a model without keep_alive has one in the far future."""
    return "another model needs the memory" if moment.startswith(FOREVER) else moment


@with_options()
def stop_command(
    model: Annotated[str, typer.Argument(metavar="NAME", help="Name of a model, as `localinfer ps` shows it.")],
    server: ServerOptions,
) -> None:
    """Unload a model of a running server.

    \b
    Examples:
      localinfer stop smollm2
    """
    try:
        server.request("POST", "/api/generate", {"model": model, "keep_alive": 0, "stream": False})
    except ConnectionRefusedError:
        raise LocalInferError(f"no server is running at {server.name}") from None
    screen.note(f"{screen.one_line(model)}: unloaded")
