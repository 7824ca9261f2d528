"""The tools of a chat, with those of MCP servers, which run as long as the chat."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cli.chat.tools import Toolbox
from cli.mcp.chat_tools import McpTools
from cli.mcp.options import McpOptions

if TYPE_CHECKING:
    from localinfer.mcp.client.server_config import ServerConfig


@contextlib.contextmanager
def with_servers(
    own: Toolbox | None, servers: "Sequence[ServerConfig]", options: McpOptions, seconds: float
) -> Iterator[Toolbox | None]:
    """Start MCP servers, and yield the chat's own tools, if there are any, with those of the servers."""
    if not servers:
        yield own
        return
    from localinfer.mcp.client.client import McpClient

    with McpClient(servers) as client:
        box = own or Toolbox([], seconds=seconds)
        box.mcp = McpTools(client, options.mcp_allow or ())
        yield box
