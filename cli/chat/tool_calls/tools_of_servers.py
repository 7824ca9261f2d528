"""The tools of a chat, with those of MCP servers, which run as long as the chat."""

import contextlib
from collections.abc import Iterator

from cli.chat.options import ToolOptions
from cli.chat.tool_calls.tools import Toolbox
from cli.mcp.chat_tools import McpTools


@contextlib.contextmanager
def with_servers(own: Toolbox | None, options: ToolOptions, *, interactive: bool) -> Iterator[Toolbox | None]:
    """Start MCP servers, and yield the chat's own tools, if there are any, with those of the servers."""
    servers = options.servers(interactive=interactive)
    if not servers:
        yield own
        return
    from localinfer.mcp.client.client import McpClient

    with McpClient(servers) as client:
        box = own or Toolbox([], seconds=options.tool_timeout)
        box.mcp = McpTools(client, options.mcp_allow or ())
        yield box


def wait_for_servers(tools: Toolbox | None) -> None:
    if tools and tools.mcp:
        tools.mcp.wait_until_started()
