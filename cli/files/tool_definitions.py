"""Files with definitions of tools."""

import re
from typing import Any

from cli.files.text_input import read_json
from cli.terminal import screen
from localinfer.errors import UsageError

Schema = dict[str, Any]

NAME = re.compile(r"\w[\w.:/-]*")  # passed as a command-line argument, so it must not look like an option


def read_schemas(file: str) -> list[Schema]:
    """Read tool definitions from a JSON file: a list, or an object with `tools`, of functions with or without OpenAI's
    wrapper `{"type": "function", "function": ...}`.
    """
    value = read_json(file)
    listed = value.get("tools", [value]) if isinstance(value, dict) else value
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"--tools: {file}: must be a list of tool definitions")
    return [normalize_tool(tool, f"--tools: {file}: [{index}]") for index, tool in enumerate(listed)]


def normalize_tool(tool: object, where: str) -> Schema:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UsageError(f"{where}: must be a function with a name")
    if not NAME.fullmatch(function["name"]):
        raise UsageError(f"{where}.name: must be a word, not {screen.one_line(function['name'])}")
    if not isinstance(function.get("parameters", {}), dict):
        raise UsageError(f"{where}.parameters: must be a JSON schema")
    return {"type": "function", "function": function}
