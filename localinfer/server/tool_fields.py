"""Parsing of the request fields `tools`, `tool_choice` and `parallel_tool_calls`."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localinfer.escaping import printable
from localinfer.server.api_errors import field_error
from localinfer.server.request_fields import Fields, get

Tool = Mapping[str, Any]
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolFields:
    """The tools of a request, `choice` ("auto", "required" or the name of a tool), and whether several calls may follow
    each other.
    """

    tools: list[Tool] | None = None
    choice: str = "auto"
    parallel: bool = True
    is_streamed: bool = False  # whether arguments are passed on while the model writes them

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments of `Model.stream_chat`."""
        if not self.tools:
            return {}
        return {
            "tools": self.tools, "tool_choice": self.choice, "parallel_tool_calls": self.parallel,
            "stream_arguments": self.is_streamed,
        }  # fmt: skip


def parse_tool_fields(fields: Fields) -> ToolFields:
    """Parse the tools of a request. Raises APIError (400) that names the first invalid field."""
    tools = parse_tools(get(fields, "tools", list, []))
    choice = parse_tool_choice(fields.get("tool_choice"), [tool["function"]["name"] for tool in tools])
    parallel = get(fields, "parallel_tool_calls", bool, True)
    return ToolFields(tools, choice, parallel) if tools and choice != "none" else ToolFields()


def parse_tools(tools: list[Any]) -> list[Tool]:
    """Return the functions among the tools, in the format of the chat API. Other types are skipped with a warning."""
    functions = []
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise field_error(field, "must be an object")
        kind = tool.get("type", "function")
        if kind == "function":
            functions.append(parse_function(tool, field))
        elif isinstance(kind, str):
            warnings.warn(f"{field}: skipped, tools of type {printable(kind, 40)} are not supported", stacklevel=2)
        else:
            raise field_error(f"{field}.type", "must be a string")
    return functions


def parse_function(tool: dict[str, Any], field: str) -> Tool:
    """Return a function in the format of the chat API; the Responses API does not nest it."""
    if "function" in tool:
        function, field = tool["function"], f"{field}.function"
    else:
        function = {key: value for key, value in tool.items() if key not in ("type", "strict")}
    if not isinstance(function, dict):
        raise field_error(field, "must be an object")
    if not isinstance(name := function.get("name"), str) or not name:
        raise field_error(f"{field}.name", "must be the name of the function")
    if not isinstance(function.get("parameters") or {}, dict):
        raise field_error(f"{field}.parameters", "must be a JSON schema")
    return {"type": "function", "function": function}


def parse_tool_choice(choice: object, names: list[str]) -> str:
    """Return "none", "auto", "required", or the name of the function to call."""
    match choice:
        case None:
            return "auto"
        case str() if choice not in CHOICES:
            raise field_error("tool_choice", f"must be none, auto, required or a function, not {printable(choice, 40)}")
        case "required" if not names:
            raise field_error("tool_choice", "required needs tools of type function")
        case str():
            return choice
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if name not in names:
                raise field_error("tool_choice.function.name", f"there is no tool {printable(name, 60)}")
            return name
    raise field_error("tool_choice", 'must be none, auto, required or {"type": "function", "function": {"name": ...}}')
