"""Run the MCP server: over stdin and stdout, or over HTTP."""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from localinfer.errors import LocalInferError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ENDPOINT = "/mcp"
GRACE_SECONDS = 2  # for open connections when the server ends


def silence_logging() -> None:
    """Keep libraries from writing to stderr: errors are reported to the client."""
    logging.getLogger().addHandler(logging.NullHandler())


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client until it closes stdin. Meanwhile, what else is written to stdout goes to stderr."""
    anyio.run(server.run_stdio_async)


def serve_http(
    server: MCPServer[Any], host: str, port: int, allowed_hosts: Sequence[str], on_listening: Callable[[str], None]
) -> None:
    """Serve streamable HTTP at http://HOST:PORT/mcp. `on_listening` gets the address.

    Requests with another Host or Origin header than this machine's, `host` or `allowed_hosts` are refused, so that no
    web page can use the server by DNS rebinding. Raises LocalInferError if the address cannot be used.
    """
    import uvicorn

    shown = f"[{host}]" if ":" in host else host
    names = [*dict.fromkeys([*LOOPBACK, shown, *allowed_hosts])]
    security = TransportSecuritySettings(
        allowed_hosts=[value for name in names for value in (name, f"{name}:*")],
        allowed_origins=[f"http://{name}{rest}" for name in names for rest in ("", ":*")],
    )
    app = server.streamable_http_app(streamable_http_path=ENDPOINT, transport_security=security)
    listening = listen(host, port)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=GRACE_SECONDS)
    with listening:
        on_listening(f"http://{shown}:{listening.getsockname()[1]}{ENDPOINT}")
        uvicorn.Server(config).run([listening])


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise LocalInferError(f"{host}:{port}: {getattr(error, 'strerror', None) or error}") from None
