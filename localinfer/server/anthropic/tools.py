"""Tools and `tool_choice` of a request to Anthropic's API."""

from typing import Any

from localinfer.escaping import printable
from localinfer.server.http.api_errors import field_error
from localinfer.server.requests.request_fields import Fields, get
from localinfer.server.requests.tool_fields import Tool, ToolFields, check_function, parse_tools


def parse_tool_fields(fields: Fields) -> ToolFields:
    """Parse the tools of a request. Raises APIError (400) that names the first invalid field.

    Tools that Anthropic's servers run or define, such as web_search, are skipped with a warning.
    """
    tools = parse_tools(get(fields, "tools", list, []), "custom", parse_tool)
    tool_choice = get(fields, "tool_choice", dict, {})
    choice = parse_choice(tool_choice, [tool["function"]["name"] for tool in tools])
    if not isinstance(is_single := tool_choice.get("disable_parallel_tool_use") or False, bool):
        raise field_error("tool_choice.disable_parallel_tool_use", "must be true or false")
    is_streamed = get(fields, "stream", bool, False)
    return ToolFields(tools, choice, not is_single, is_streamed) if tools and choice != "none" else ToolFields()


def parse_tool(tool: dict[str, Any], field: str) -> Tool:
    """Return a tool in the format of the chat API."""
    check_function(tool, field, "input_schema")
    if not isinstance(tool.get("input_schema"), dict):
        raise field_error(f"{field}.input_schema", "must be a JSON schema")
    description = {"description": tool["description"]} if tool.get("description") else {}
    return {"type": "function", "function": {"name": tool["name"], **description, "parameters": tool["input_schema"]}}


def parse_choice(choice: dict[str, Any], names: list[str]) -> str:
    """Return "none", "auto", "required", or the name of the tool to call."""
    match choice.get("type", "auto"):
        case "auto" | "none" as kind:
            return str(kind)
        case "any" if names:
            return "required"
        case "any":
            raise field_error("tool_choice", "any needs tools with an input_schema")
        case "tool":
            if choice.get("name") not in names:
                raise field_error("tool_choice.name", f"there is no tool {printable(str(choice.get('name')), 60)}")
            return str(choice["name"])
    raise field_error("tool_choice.type", "must be auto, any, tool or none")
