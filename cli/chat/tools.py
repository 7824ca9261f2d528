"""The tools of a chat: what the model is told of them, and who runs what it calls.

Nothing runs without --tool-exec, and nothing that nobody has agreed to. Knows neither how calls are told apart from
answers nor what becomes of results.
"""

import json
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Any

from cli import screen
from cli.chat import tool_process
from cli.texts import from_json
from localinfer.errors import UsageError

Schema = dict[str, Any]
Entry = Mapping[str, Any]  # of `tool_calls` in a message

NAME = re.compile(r"\w[\w.:/-]*")  # it is an argument of a command line: never an option
REFUSED = "The user does not want this to be run."
SHOWN_LINES, SHOWN_CHARACTERS = 3, 300  # of a result


class Toolbox:
    """The `schemas` of the tools, and the command line that runs them, if there is one."""

    def __init__(self, schemas: list[Schema], command: str = "", seconds: float = 60.0) -> None:
        self.schemas = schemas
        self.command = command_line(command) if command else []
        self._seconds = seconds
        self._always: set[str] = set()  # names that need not be asked for any more

    def result(self, entry: Entry) -> str:
        """What a call gives back; asks before anything runs."""
        name, arguments = entry["function"]["name"], entry["function"]["arguments"]
        if name not in (schema["function"]["name"] for schema in self.schemas):
            result = f"error: there is no tool {name}"
        elif self._agreed(name):
            given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            result = tool_process.run(self.command, name, given, self._seconds)
        else:
            result = REFUSED
        screen.aside(shown_result(result))
        return result

    def _agreed(self, name: str) -> bool:
        if name in self._always:
            return True
        forget_typed()
        answer = answer_to(f"Run {shlex.join([*self.command, name])}? [y]es, [n]o, [a]lways this tool: ").lower()
        if answer in ("a", "always"):
            self._always.add(name)
        return answer in ("y", "yes", "a", "always")


def toolbox(file: str | None, command: str | None, seconds: float) -> Toolbox | None:
    """What --tools, --tool-exec and --tool-timeout say. UsageError for what cannot be done."""
    if command is None and file is None:
        return None
    if file is None:
        raise UsageError("--tool-exec: runs tools, and there are none: --tools FILE says which there are")
    if command is not None and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("--tool-exec: asks before anything runs, and nobody can be asked here: stdin is no terminal")
    if seconds <= 0:
        raise UsageError("--tool-timeout: must be more than 0 seconds")
    return Toolbox(schemas_from(file), command or "", seconds)


def schemas_from(file: str) -> list[Schema]:
    """The tools in a JSON file: a list of functions, each in OpenAI's frame or bare, or an object that has it."""
    value = from_json(file)
    listed = value.get("tools", [value]) if isinstance(value, dict) else value
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"--tools: {file}: must be a list of tools, each a JSON schema of a function")
    return [framed(tool, f"--tools: {file}: [{place}]") for place, tool in enumerate(listed)]


def framed(tool: object, where: str) -> Schema:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UsageError(f"{where}: must be a function with a name")
    if not NAME.fullmatch(function["name"]):
        raise UsageError(f"{where}.name: must be a word, not {screen.one_line(function['name'])}")
    if not isinstance(function.get("parameters", {}), dict):
        raise UsageError(f"{where}.parameters: must be a JSON schema")
    return {"type": "function", "function": function}


def command_line(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--tool-exec: {error}") from None
    if not words or not shutil.which(words[0]):
        raise UsageError(f"--tool-exec: {screen.one_line(command)}: there is no such command")
    return words


def forget_typed() -> None:
    """What was typed before a question is no answer to it."""
    try:
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    except (ImportError, OSError, ValueError, termios.error):
        pass


def answer_to(question: str) -> str:
    """What the user types. After Ctrl-Z and `fg` the question is shown once more."""

    def ask(*_: object) -> None:
        sys.stderr.write(question)
        sys.stderr.flush()

    before = signal.signal(signal.SIGCONT, ask) if hasattr(signal, "SIGCONT") else None
    try:
        ask()
        return sys.stdin.readline().strip()
    finally:
        if before is not None:
            signal.signal(signal.SIGCONT, before)


def shown_call(entry: Entry) -> str:
    """All of it: somebody is to agree to it."""
    arguments = entry["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"→ {screen.one_line(entry['function']['name'])} {screen.one_line(text)}"


def shown_result(result: str) -> str:
    """Its beginning, in one line."""
    lines = result.splitlines()
    beginning = screen.one_line(" ".join(lines[:SHOWN_LINES]))[:SHOWN_CHARACTERS]
    whole = len(lines) <= SHOWN_LINES and len(result) <= SHOWN_CHARACTERS
    size = "" if whole else f" ... ({len(lines):,} lines, {len(result):,} characters)"
    return f"← {beginning or '(nothing)'}{size}"
