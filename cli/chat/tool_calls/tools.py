"""Tool execution of the chat.

A tool runs only if --tool-exec names a program for it, or if an MCP server has it, and after the user has confirmed the
call.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cli.chat.tool_calls import tool_process
from cli.files.tool_definitions import Schema, read_schemas
from cli.terminal import screen
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from cli.mcp.chat_tools import McpTools

Entry = Mapping[str, Any]  # an entry of `tool_calls` in a message

REFUSED = "The user rejected this tool call."
NOBODY_TO_ASK = "The call is not made: stdin is no terminal to ask on. --mcp-allow SERVER.TOOL allows it."
SHOWN_LINES, SHOWN_CHARACTERS = 3, 300  # limits for showing a result


class Toolbox:
    """Tools of a file, the command that runs them, if there is one, and tools of MCP servers, if there are any."""

    def __init__(
        self, schemas: list[Schema], command: str = "", seconds: float = 60.0, mcp: "McpTools | None" = None
    ) -> None:
        self.own_schemas = schemas
        self.command = split_command(command) if command else []
        self.seconds = seconds
        self.mcp = mcp
        self._approved: set[str] = set()  # tools that run without further confirmation

    @property
    def own_names(self) -> set[str]:
        return {schema["function"]["name"] for schema in self.own_schemas}

    @property
    def schemas(self) -> list[Schema]:
        """The definitions of all tools. Those of MCP servers may change."""
        return [*self.own_schemas, *(self.mcp.schemas(self.own_names) if self.mcp else ())]

    def can_run(self, calls: Sequence[Entry]) -> bool:
        """Return whether these calls are run; otherwise the user types their results."""
        if self.command or not self.mcp:
            return bool(self.command)
        return not any(call["function"]["name"] in self.own_names for call in calls)

    def result(self, entry: Entry) -> str:
        """Run a tool call after confirmation by the user and return its result."""
        name, arguments = entry["function"]["name"], entry["function"]["arguments"]
        if self.mcp and (tool := self.mcp.find(name)):
            is_approved = self.mcp.is_allowed(tool) or self._is_approved(tool.fingerprint, self.mcp.question(tool))
            result = self.mcp.call(tool, arguments, self.seconds) if is_approved else REFUSED
        elif name not in self.own_names:
            result = f"error: there is no tool {name}"
        elif self._is_approved(name, f"Run {shlex.join([*self.command, name])}?"):
            given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            result = tool_process.run(self.command, name, given, self.seconds)
        else:
            result = REFUSED
        screen.note_dim(format_result(result))
        return result

    def _is_approved(self, key: str, question: str) -> bool:
        """Ask whether a call may run, unless the tool `key` was approved for the whole chat."""
        if key in self._approved:
            return True
        if not can_ask():
            screen.note_dim(NOBODY_TO_ASK)
            return False
        discard_typed_input()
        answer = ask_user(f"{question} [y]es, [n]o, [a]lways this tool: ").lower()
        if answer in ("a", "always"):
            self._approved.add(key)
        return answer in ("y", "yes", "a", "always")


def create_toolbox(file: str | None, command: str | None, seconds: float) -> Toolbox | None:
    """Create the toolbox from --tools, --tool-exec and --tool-timeout. Raises UsageError for invalid combinations."""
    if seconds <= 0:
        raise UsageError("--tool-timeout: must be more than 0 seconds")
    if command is None and file is None:
        return None
    if file is None:
        raise UsageError("--tool-exec: requires --tools FILE")
    if command is not None and not can_ask():
        raise UsageError("--tool-exec: cannot ask for confirmation: stdin is not a terminal")
    return Toolbox(read_schemas(file), command or "", seconds)


def split_command(command: str) -> list[str]:
    try:
        words = shlex.split(command) if os.name == "posix" else split_windows_command(command)
    except ValueError as error:
        raise UsageError(f"--tool-exec: {error}") from None
    if not words or not shutil.which(words[0]):
        raise UsageError(f"--tool-exec: {screen.one_line(command)}: no such command")
    return words


def split_windows_command(command: str) -> list[str]:
    """Split a command at spaces outside of double quotes. Backslashes separate the folders of a path."""
    words = re.findall(r'(?:[^\s"]|"[^"]*")+', command)
    if command.count('"') % 2:
        raise ValueError("No closing quotation")
    return [word.replace('"', "") for word in words]


def can_ask() -> bool:
    """Return whether there is a terminal to ask the user on."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def discard_typed_input() -> None:
    """Discard keys that were typed before the approval question appeared, so that they do not answer it."""
    try:
        import termios
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError, termios.error):  # stdin is no terminal
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def ask_user(question: str) -> str:
    """Ask a question and return the typed answer. After Ctrl-Z and `fg`, the question is printed again."""

    def ask(*_: object) -> None:
        screen.write_question(question)

    before = signal.signal(signal.SIGCONT, ask) if hasattr(signal, "SIGCONT") else None
    try:
        ask()
        return sys.stdin.readline().strip()
    except KeyboardInterrupt:
        screen.note("")  # what follows does not continue the line of the question
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGCONT, before)


def format_call(entry: Entry) -> str:
    """Format a tool call in full, for confirmation."""
    arguments = entry["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"→ {screen.one_line(entry['function']['name'])} {screen.one_line(text)}"


def format_result(result: str) -> str:
    """Return the beginning of a result in one line."""
    lines = result.splitlines()
    beginning = screen.one_line(" ".join(lines[:SHOWN_LINES]))[:SHOWN_CHARACTERS]
    whole = len(lines) <= SHOWN_LINES and len(result) <= SHOWN_CHARACTERS
    size = "" if whole else f" ... ({len(lines):,} lines, {len(result):,} characters)"
    return f"← {beginning or '(nothing)'}{size}"
