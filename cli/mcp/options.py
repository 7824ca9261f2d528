"""The MCP servers of a chat: options, and the setting in models.toml."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localinfer.errors import UsageError
from localinfer.escaping import printable

if TYPE_CHECKING:
    from localinfer.mcp.client.server_config import ServerConfig

VARIABLE = "LOCALINFER_MCP"


@dataclass(frozen=True, kw_only=True)
class McpOptions:
    """The MCP servers whose tools the model may call."""

    mcp: Annotated[
        str | None,
        typer.Option(
            "--mcp", metavar="SERVERS.json", help="Offer the tools of the MCP servers in this file; see docs/mcp.md.",
        ),
    ] = None
    no_mcp: Annotated[
        bool, typer.Option("--no-mcp", help="Do not start the MCP servers that models.toml or LOCALINFER_MCP names.")
    ] = False
    mcp_allow: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp-allow", metavar="SERVER.TOOL",
            help="Call this tool of an MCP server without asking (SERVER.*: all of its tools); may be repeated.",
        ),
    ] = None  # fmt: skip

    def servers(self, *, interactive: bool) -> "list[ServerConfig]":
        """Read the servers of the file. The file of models.toml or of the environment is for interactive chats only.

        Raises UsageError for an invalid file, a missing library, and a value of --mcp-allow that names no server.
        """
        if self.no_mcp and self.mcp is not None:
            raise UsageError("--no-mcp: cannot be combined with --mcp")
        file = self.mcp or (default_file() if interactive and not self.no_mcp else None)
        if file is None:
            if self.mcp_allow:
                raise UsageError("--mcp-allow: requires --mcp SERVERS.json")
            return []
        from localinfer.mcp.client.server_config import read_servers
        from localinfer.mcp.library import require_library

        configs = read_servers(Path(file).expanduser())
        names = [each.name for each in configs]
        for allowed in self.mcp_allow or ():
            if not any(allowed.startswith(f"{name}.") for name in names):
                shown = ", ".join(printable(name) for name in names) or "none"
                raise UsageError(f"--mcp-allow: {printable(allowed)}: must be SERVER.TOOL; the servers are: {shown}")
        if configs:
            require_library("--mcp")
        return configs


def default_file() -> str | None:
    """Return the file of the environment, else that of models.toml, if there is one."""
    from localinfer.hub.model_registry import model_registry

    return os.environ.get(VARIABLE) or model_registry().mcp_servers
