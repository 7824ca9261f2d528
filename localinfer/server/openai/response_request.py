"""The request of `/v1/responses`, parsed: its items become messages of the chat API."""

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from localinfer.escaping import printable
from localinfer.multimodal.parts import is_media_part
from localinfer.server.http.api_errors import field_error
from localinfer.server.requests.prompts import ChatPrompt
from localinfer.server.requests.request_fields import (
    Fields,
    constraint_options,
    get,
    json_constraint_fields,
    length_options,
    sampling_options,
)
from localinfer.server.requests.tool_fields import parse_tool_fields
from localinfer.server.requests.turns import Message, join_turns

Item = dict[str, Any]
TEXT_TYPES = ("input_text", "output_text", "text", "reasoning_text")
ROLES = {"developer": "system"}  # role of an item -> role of a message, where they differ
SKIPPED = (  # items of tools that OpenAI's servers run, and references to what they store
    "web_search_call", "file_search_call", "computer_call", "computer_call_output", "image_generation_call",
    "code_interpreter_call", "local_shell_call", "local_shell_call_output", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response", "mcp_call", "item_reference", "compaction",
)  # fmt: skip
INPUT = "must be a string, or a list of messages, function calls and function call outputs"


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A parsed request."""

    model_name: str | None
    prompt: ChatPrompt
    options: Mapping[str, Any]
    echoed_fields: Item  # fields of the request that the response repeats
    reports_prefill: bool
    timings_per_token: bool


def parse_response_request(fields: Fields) -> ResponseRequest:
    """Parse a request. Raises APIError (400) that names the first invalid field."""
    if fields.get("previous_response_id") or fields.get("conversation"):
        raise field_error("previous_response_id", "stored conversations are not supported; send all messages in input")
    format = get(get(fields, "text", dict, {}), "format", dict, {})
    response_format = {"type": format.get("type", "text"), "json_schema": {"schema": format.get("schema")}}
    options = (
        sampling_options(fields)
        | length_options(fields, "max_output_tokens")
        | constraint_options({"response_format": response_format})
    )
    tools = replace(parse_tool_fields(fields), is_streamed=get(fields, "stream", bool, False))
    effort = get(fields, "reasoning", dict, {}).get("effort")
    kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"} if isinstance(effort, str) else {}
    echoed_fields = {name: fields.get(name) for name in ("instructions", "temperature", "top_p", "max_output_tokens")}
    echoed_fields |= {
        "tools": fields.get("tools") or [],
        "tool_choice": fields.get("tool_choice") or "auto",
        "parallel_tool_calls": tools.parallel,
        "metadata": {},
    }
    field_of = json_constraint_fields("text.format.schema") | tools.field_of
    prompt = ChatPrompt(parse_messages(fields), tools, kwargs, field_of=field_of)
    return ResponseRequest(
        get(fields, "model", str, "") or None, prompt, options, echoed_fields,
        reports_prefill=get(fields, "return_progress", bool, False),
        timings_per_token=get(fields, "timings_per_token", bool, False))  # fmt: skip


def parse_messages(fields: Fields) -> list[Message]:
    """Convert `instructions` and `input` to messages of the chat API. Raises APIError (400) if they are invalid."""
    value = fields.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise field_error("input", "must be a string, or a list of items")
    messages: list[Message] = []
    if instructions := get(fields, "instructions", str, ""):
        messages.append({"role": "system", "content": instructions})
    tool_names: dict[object, str] = {}
    for index, item in enumerate(items):
        messages += convert_item(item, f"input[{index}]", tool_names)
    turns = [turn for turn in join_turns(messages) if not is_only_reasoning(turn)]
    if not turns:
        raise field_error("input", "has no message")
    return turns


def is_only_reasoning(turn: Message) -> bool:
    """Return whether a turn is the reasoning of an answer that the client does not send."""
    return "reasoning_content" in turn and not turn["content"] and not turn.get("tool_calls")


def convert_item(item: object, field: str, tool_names: dict[object, str]) -> Iterator[Message]:
    """Yield the message of an input item, or none. `tool_names` are the names of the called tools, by the call's id.

    Raises APIError (400) for an unknown kind of item.
    """
    match item:
        case {"type": "function_call", "name": str(name), "arguments": str(arguments), "call_id": id}:
            tool_names[id] = name
            yield call_message(id, name, parse_arguments(arguments))
        case {"type": "custom_tool_call", "name": str(name), "input": str(text), "call_id": id}:
            tool_names[id] = name
            yield call_message(id, name, {"input": text})
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": id, "output": output}:
            name_field = {"name": tool_names[id]} if id in tool_names else {}
            yield {"role": "tool", "tool_call_id": id, **name_field, "content": content_of(output, f"{field}.output")}
        case {"type": "reasoning", "content": list(parts)}:
            yield {"role": "assistant", "content": "", "reasoning_content": text_of(parts, f"{field}.content")}
        case {"type": "reasoning"}:
            pass  # encrypted: only the server that wrote it can read it
        case {"role": str(role), "content": content}:
            yield {"role": ROLES.get(role, role), "content": content_of(content, f"{field}.content")}
        case {"type": str(kind)} if kind in SKIPPED:
            warnings.warn(f"{field}: skipped, items of type {kind} are not supported", stacklevel=2)
        case {"type": str(kind)}:
            raise field_error("input", f"{INPUT}; {field} has the type {printable(kind, 40)}")
        case _:
            raise field_error("input", INPUT)


def call_message(id: object, name: str, arguments: object) -> Message:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def parse_arguments(text: str) -> object:
    """Return the arguments of a call as an object, as templates expect them; the text if it is not an object."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def content_of(content: object, field: str) -> str | list[Message]:
    """Return the text of a content, or its parts if it has images or sounds. Raises APIError (400) for other parts."""
    if not isinstance(content, list) or not any(map(is_media_part, content)):
        return text_of(content, field)
    return [
        {**part, "field": f"{field}[{index}]"} if is_media_part(part) else {"type": "text", "text": part_text(part)}
        for index, part in enumerate(content)
    ]


def text_of(content: object, field: str) -> str:
    """Return the text of a content, which is a string or a list of parts. Raises APIError (400) for other parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise field_error("input", f"{field} must be a string or a list of parts")
    return "".join(part_text(part) for part in content)


def part_text(part: object) -> str:
    match part:
        case {"type": kind, "text": str(text)} if kind in TEXT_TYPES:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
    raise field_error("input", "content must be text, images or audio")
