"""Parsing of the request fields `tools`, `tool_choice` and `parallel_tool_calls`."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.requests.request_fields import Fields, get

if TYPE_CHECKING:
    from localinfer.generation.tool_calls.tool_choice import ToolChoice

Tool = Mapping[str, Any]
ToolParser = Callable[[dict[str, Any], str], Tool]


@dataclass(frozen=True, slots=True)
class ToolFields:
    """The tools of a request, which of them may or must be called, and whether several calls may follow each other."""

    tools: list[Tool] | None = None
    choice: "str | ToolChoice" = "auto"
    parallel: bool = True
    is_streamed: bool = False  # whether arguments are passed on while the model writes them
    field_of: dict[str, str] = field(default_factory=dict)  # what `to_api_error` needs: the field of each schema

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
    tools = parse_tools(get(fields, "tools", list, []), "function", parse_function)
    choice = parse_tool_choice(fields.get("tool_choice"), [tool["function"]["name"] for tool in tools])
    parallel = get(fields, "parallel_tool_calls", bool, True)
    field_of = {f"tool {name}": each for name, each in schema_fields(fields.get("tools"))}
    return ToolFields(tools, choice, parallel, field_of=field_of) if tools and choice.mode != "none" else ToolFields()


def schema_fields(tools: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of each tool, and the field with the schema of its arguments."""
    for index, tool in enumerate(tools or ()):
        match tool:
            case {"function": {"name": str(name)}}:
                yield name, f"tools[{index}].function.parameters"
            case {"name": str(name)}:
                yield name, f"tools[{index}].parameters"


def parse_tools(tools: list[Any], default_type: str, parse: ToolParser) -> list[Tool]:
    """Return the tools of the default type, in the format of the chat API. Other types are skipped with a warning.

    `parse` is a function of a tool and the name of its field.
    """
    functions = []
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise field_error(field, "must be an object")
        kind = default_type if tool.get("type") is None else tool["type"]
        if kind == default_type:
            functions.append(parse(tool, field))
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
    check_function(function, field, "parameters")
    return {"type": "function", "function": function}


def check_function(function: dict[str, Any], field: str, schema_name: str) -> None:
    """Check the name of a function and its JSON schema, which has this name. Raises APIError (400)."""
    if not isinstance(name := function.get("name"), str) or not name:
        raise field_error(f"{field}.name", "must be the name of the function")
    if not isinstance(function.get(schema_name) or {}, dict):
        raise field_error(f"{field}.{schema_name}", "must be a JSON schema")


def parse_tool_choice(choice: object, names: list[str]) -> "ToolChoice":
    """Return which of the functions with these names may or must be called. Raises APIError (400)."""
    from localinfer.generation.tool_calls.tool_choice import FORMATS, MODES, ToolChoice

    if choice is None:
        return ToolChoice()
    if not isinstance(choice, dict) and choice not in MODES:
        shown = f", not {printable(choice, 40)}" if isinstance(choice, str) else ""
        raise field_error("tool_choice", FORMATS + shown)
    if choice == "required" and not names:
        raise field_error("tool_choice", "required needs tools of type function")
    try:
        parsed = ToolChoice.parse(choice)
    except UsageError as error:
        raise APIError(400, str(error), param="tool_choice") from None
    for name in parsed.names or ():
        if name not in names:
            is_list = isinstance(choice, dict) and choice["type"] == "allowed_tools"
            field = "tool_choice.tools" if is_list else "tool_choice.function.name"
            raise field_error(field, f"there is no tool {printable(name, 60)}")
    return parsed
