"""The slash command /mcp: the servers of a chat, their state and their tools, each with the beginning of its
description; /tools has the whole of it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from cli.terminal import screen
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from cli.mcp.chat_tools import McpTools
    from localinfer.mcp.client.server_state import Server

MIN_WIDTH = 40  # columns
WITHOUT_SERVERS = "this chat has no MCP servers; `localinfer chat --mcp SERVERS.json` starts them"


class Chat(Protocol):
    """The interface of the chat that this command uses."""

    mcp: "McpTools | None"


def mcp(chat: Chat, argument: str) -> None:
    """List the servers, or restart one."""
    action, _, name = argument.partition(" ")
    if not chat.mcp:
        screen.note_wrapped(WITHOUT_SERVERS)
    elif not argument:
        chat.mcp.show_notices()
        show_servers(chat.mcp.client.servers)
    elif action == "restart":
        restart(chat.mcp, name.strip().strip("\"'"))
    else:
        raise UsageError(f"/mcp: {screen.one_line(argument)}: must be nothing, or restart SERVER")


def restart(mcp: "McpTools", name: str) -> None:
    servers = mcp.client.servers
    if name not in (each.name for each in servers):
        known = ", ".join(screen.one_line(each.name) for each in servers)
        raise UsageError(f"/mcp restart: {screen.one_line(name) or 'missing name'}: the servers are {known}")
    mcp.client.restart(name)
    mcp.wait_until_started()
    show_servers([each for each in servers if each.name == name])


def show_servers(servers: "list[Server]") -> None:
    for server in servers:
        for line in server_lines(server):
            screen.note_wrapped(line, hanging=4)


def server_lines(server: "Server") -> Iterator[str]:
    """Yield a line with the state of a server, and one per tool, or what can be done about a server that has ended."""
    from localinfer.mcp.client.server_log import log_path

    state = server.problem if server.state == "ended" else server.state
    title = f" ({server.title})" if server.title else ""
    yield f"{screen.one_line(server.name)}{title}: {screen.one_line(state)}"
    if server.state == "ended":
        log = log_path(server.name)
        yield f"  `/mcp restart {screen.one_line(server.name)}` starts it again; its log: {log}"
    yield from tool_lines(server)


def tool_lines(server: "Server") -> Iterator[str]:
    """Yield a line per tool, with the first sentence of its description, cut to the width of the terminal."""
    width = max(screen.columns() - 1, MIN_WIDTH)
    for tool in server.tools:
        about = screen.one_line(tool.description.strip().split("\n")[0]).partition(". ")[0]
        line = f"  {tool.name}  {about}".rstrip()
        yield line if len(line) <= width else f"{line[: width - 3]}..."
