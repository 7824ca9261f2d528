"""The command `localinfer mcp-tools`: what the MCP servers of a configuration file offer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import JsonOption
from cli.mcp.chat_command import tool_lines
from cli.mcp.chat_tools import wait_until_started
from cli.terminal import screen
from localinfer.errors import LocalInferError
from localinfer.mcp.library import require_library

if TYPE_CHECKING:
    from localinfer.mcp.client.server_state import Server


def mcp_tools_command(
    servers: Annotated[str, typer.Argument(metavar="SERVERS.json", help="File with MCP servers, as for `chat --mcp`.")],
    as_json: JsonOption = False,
) -> None:
    """Start the MCP servers of a file, and list their tools.

    It needs no model. The exit code is 1 if a server does not start; its log tells more.

    \b
    Examples:
      localinfer mcp-tools servers.json
      localinfer mcp-tools servers.json --json
    """
    from localinfer.mcp.client.server_config import read_servers

    configs = read_servers(Path(servers).expanduser())
    require_library("mcp-tools")
    from localinfer.mcp.client.client import McpClient

    with McpClient(configs) as client:
        wait_until_started(client)
        if as_json:
            listed = [as_object(each) for each in client.servers]
            screen.write(json.dumps({"servers": listed}, ensure_ascii=False, indent=1) + "\n")
        else:
            for server in client.servers:
                show(server)
        failed = [each for each in client.servers if each.state != "ready"]
    if failed:
        raise LocalInferError(f"{len(failed)} of {len(configs)} MCP servers did not start")


def show(server: "Server") -> None:
    from localinfer.mcp.client.server_log import log_path

    if server.state == "ready":
        title = f" ({server.title})" if server.title else ""
        lines = [f"{screen.one_line(server.name)}{title}: {len(server.tools)} tools", *tool_lines(server)]
        screen.write("".join(f"{line}\n" for line in lines))
    elif server.config.transport == "stdio":
        screen.note_dim(f"the log of {screen.one_line(server.name)}: {log_path(server.name)}")


def as_object(server: "Server") -> dict[str, object]:
    tools = [
        {"name": each.name, "description": each.description, "parameters": dict(each.parameters)}
        for each in server.tools
    ]
    return {
        "name": server.name, "state": server.state, "problem": server.problem, "title": server.title, "tools": tools
    }  # fmt: skip
