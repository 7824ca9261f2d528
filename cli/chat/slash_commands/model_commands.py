"""The slash commands /model and /tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cli.chat.slash_commands import session_commands
from cli.chat.tool_calls.tools import Toolbox
from cli.files.tool_definitions import read_schemas
from cli.terminal import screen

if TYPE_CHECKING:
    from cli.mcp.chat_tools import McpTools
    from localinfer.options import Layer


class Chat(session_commands.Chat, Protocol):
    """The interface of the chat that these commands use."""

    tools: Toolbox | None
    mcp: "McpTools | None"

    def reopen(self, name: str, changes: "Layer") -> None: ...


def model(chat: Chat, name: str) -> None:
    """Continue the conversation with another model, or list those on this machine."""
    if name:
        chat.reopen(name, {})
        return
    screen.note_wrapped(f"this chat uses {chat.name}; /model NAME continues it with another model")
    for known in local_models():
        screen.note(f"  {known}")


def local_models() -> list[str]:
    """Return the names of the models on this machine."""
    from localinfer.hub import resolve

    stored = [each for _, models in resolve.list_stores() for each in models if each.fraction == 1]
    return [*resolve.list_registry(), *(each.name for each in stored)]


def tools(chat: Chat, argument: str) -> None:
    """List the tools that the model may call, or read others from a file; `off` removes all, also those of MCP servers,
    and `on` brings the latter back.
    """
    if argument == "off":
        chat.tools = None
    elif argument == "on" and chat.mcp:
        chat.tools = chat.tools or Toolbox([], mcp=chat.mcp)
    elif argument:
        file = str(Path(argument.strip("\"'")).expanduser())
        box = Toolbox(read_schemas(file), mcp=chat.mcp)
        if chat.tools:
            box.command, box.seconds = chat.tools.command, chat.tools.seconds
        chat.tools = box
    schemas = chat.tools.schemas if chat.tools else []
    if not chat.tools or not schemas:
        screen.note_wrapped("the model has no tools; /tools FILE reads their definitions from a JSON file")
        return
    for schema in schemas:
        function = schema["function"]
        about = screen.one_line(str(function.get("description", "")))
        screen.note_wrapped(f"{function['name']}  {about}".rstrip(), hanging=4)
    if chat.tools.own_schemas or not chat.mcp:
        runs = "after confirmation" if chat.tools.command else "by you: type the results of its calls"
        screen.note_dim(f"they are run {runs}; /tools off removes them")
    else:
        screen.note_dim("they are called after confirmation; /mcp shows their servers, /tools off removes them")
