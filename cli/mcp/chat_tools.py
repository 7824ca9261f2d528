"""The tools of MCP servers in a chat."""

import contextlib
import json
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cli.terminal import screen

if TYPE_CHECKING:
    from localinfer.mcp.client.client import McpClient
    from localinfer.mcp.client.server_state import ServerTool


class McpTools:
    """The tools of the servers of `client`. Those that `allowed` names, as SERVER.TOOL or SERVER.*, need no consent."""

    def __init__(self, client: "McpClient", allowed: Collection[str] = ()) -> None:
        self.client = client
        self._allowed = {*allowed}
        self._tools: dict[str, ServerTool] = {}  # as the model knows them

    def schemas(self, taken: Collection[str]) -> list[dict[str, Any]]:
        """Return the definitions of the tools as they are now. Names that are `taken` get a prefix."""
        self._tools = self.client.tools(taken)
        return [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description, "parameters": dict(tool.parameters)},
            }
            for name, tool in self._tools.items()
        ]

    def find(self, name: str) -> "ServerTool | None":
        """Return the tool that the model calls by this name."""
        return self._tools.get(name)

    def is_allowed(self, tool: "ServerTool") -> bool:
        return not self._allowed.isdisjoint({f"{tool.server}.{tool.name}", f"{tool.server}.*"})

    def question(self, tool: "ServerTool") -> str:
        return f"Call {screen.one_line(tool.name)} of the MCP server {screen.one_line(tool.server)}?"

    def call(self, tool: "ServerTool", arguments: object, seconds: float) -> str:
        """Call a tool and return its result, or an error message for the model."""
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments or "{}")
        if not isinstance(arguments, Mapping):
            return "error: the arguments must be a JSON object"
        status = screen.Status()
        with status.busy(f"waiting for {screen.one_line(tool.name)} of {screen.one_line(tool.server)}"):
            return self.client.call(tool, dict(arguments), seconds)

    def wait_until_started(self) -> None:
        """Wait for the servers, with a status line, and tell which have not started."""
        wait_until_started(self.client)

    def show_notices(self) -> None:
        """Tell what has happened to servers since the last call."""
        show_notices(self.client)

    def summary(self) -> str:
        """Return how many tools each server has, in one line; "" if no server is ready."""
        ready = [each for each in self.client.servers if each.state == "ready"]
        counts = [f"{screen.one_line(each.name)} ({len(each.tools)} tools)" for each in ready]
        return f"MCP servers: {', '.join(counts)}. /mcp shows them." if counts else ""


def wait_until_started(client: "McpClient") -> None:
    """Wait for the servers, with a status line, and tell which have not started."""
    status, began = screen.Status(), time.monotonic()

    def show(waiting: list[str], total: int) -> None:
        if time.monotonic() - began > screen.DELAY_SECONDS:
            names = screen.one_line(", ".join(waiting))
            status.show(f"starting MCP servers: {total - len(waiting)} of {total}, waiting for {names}")

    try:
        client.wait_until_started(show)
    finally:
        status.erase()
    show_notices(client)


def show_notices(client: "McpClient") -> None:
    for line in client.take_notices():
        screen.warn(line)
