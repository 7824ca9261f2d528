"""Messages of Anthropic's API, converted to messages of the chat API.

A message consists of content blocks. Tool results are blocks of a user message; chat templates expect a message of its
own for each, after the calls. Consecutive messages of a role are one turn.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from localinfer.escaping import printable
from localinfer.server.http.api_errors import field_error
from localinfer.server.requests.request_fields import Fields, get
from localinfer.server.requests.turns import Message, append_turn

Block = Mapping[str, Any]

CLIENT_HEADER = re.compile(r"\Ax-anthropic-billing-header:(?:\s*\w+=[^;\s]*;)*\s*")


def parse_messages(fields: Fields) -> list[Message]:
    """Convert `system` and `messages`. Raises APIError (400) that names the first invalid field."""
    messages = get(fields, "messages", list, [])
    if not messages:
        raise field_error("messages", "must be a list of at least one message")
    turns: list[Message] = []
    if system := parse_system(fields.get("system"), "system"):
        turns.append({"role": "system", "content": system})
    tool_names: dict[str, str] = {}
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise field_error(field, "must be an object")
        for added in convert_message(message, field, tool_names):
            append_turn(turns, added)
    return turns


def continues_last(fields: Fields) -> bool:
    """Return whether the model continues the last message: text of the assistant, after which no tool is called."""
    message = fields["messages"][-1]
    content = message.get("content")
    if message.get("role") != "assistant" or not content:
        return False
    return isinstance(content, str) or content[-1].get("type") == "text"


def has_cache_control(fields: Fields) -> bool:
    """Return whether the client marks a prefix of the prompt for caching."""
    contents = [message.get("content") for message in fields["messages"]]
    lists = [value for value in (fields.get("system"), fields.get("tools"), *contents) if isinstance(value, list)]
    return any(block.get("cache_control") for blocks in ([fields], *lists) for block in blocks)


def parse_system(system: object, field: str) -> str:
    """Return the text of a system prompt, without the header in which Claude Code describes the request.

    That header differs between conversations, so that no prefix of the prompt would be the same.
    """
    texts = (CLIENT_HEADER.sub("", text_of(block, where)) for block, where in content_blocks(system or "", field))
    return "\n".join(filter(None, texts))


def convert_message(message: Block, field: str, tool_names: dict[str, str]) -> Iterator[Message]:
    """Yield the messages of the chat API. `tool_names` are the names of the tools that were called, by id."""
    content = message.get("content")
    match message.get("role"):
        case "user":
            yield from convert_user_message(content, f"{field}.content", tool_names)
        case "assistant":
            yield convert_assistant_message(content, f"{field}.content", tool_names)
        case "system":
            yield {"role": "system", "content": parse_system(content, f"{field}.content")}
        case _:
            raise field_error(f"{field}.role", "must be user, assistant or system")


def convert_user_message(content: object, field: str, tool_names: dict[str, str]) -> Iterator[Message]:
    parts = []
    blocks = list(content_blocks(content, field))
    for block, where in blocks:
        if block.get("type") != "tool_result":
            parts.append(content_part(block, where))
            continue
        id = str(block.get("tool_use_id") or "")
        name = {"name": tool_names[id]} if id in tool_names else {}
        yield {"role": "tool", "tool_call_id": id, **name, "content": tool_result_content(block, where)}
    if parts or not blocks:
        yield {"role": "user", "content": joined(parts)}


def tool_result_content(block: Block, field: str) -> str | list[Block]:
    """Return the result of a call. Chat templates have no field for errors, so that the text tells them."""
    blocks = content_blocks(block.get("content") or "", f"{field}.content")
    parts = [content_part(part, where) for part, where in blocks]
    if block.get("is_error"):
        first = str(parts.pop(0)["text"]) if parts and parts[0]["type"] == "text" else ""
        parts.insert(0, {"type": "text", "text": f"Error: {first}"})
    return joined(parts)


def content_part(block: Block, field: str) -> Block:
    """Return the part of a message that a block is: an image or a text. Raises APIError (400) for other blocks."""
    match block:
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
            return {"type": "image_url", "image_url": f"data:;base64,{data}", "field": f"{field}.source.data"}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": url, "field": f"{field}.source"}
        case {"type": "image"}:
            raise field_error(f"{field}.source", "must have the type base64 with data, or url")
    return {"type": "text", "text": text_of(block, field)}


def joined(parts: list[Block]) -> str | list[Block]:
    """Return the parts, or their text if they are only texts."""
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(str(part["text"]) for part in parts)


def convert_assistant_message(content: object, field: str, tool_names: dict[str, str]) -> Message:
    texts, reasoning, calls = [], [], []
    for block, where in content_blocks(content, field):
        match block.get("type"):
            case "thinking":
                reasoning.append(require_text(block, "thinking", where))
            case "redacted_thinking":
                pass  # only the server that wrote it can read it
            case "tool_use":
                call = convert_tool_use(block, where)
                tool_names[call["id"]] = call["function"]["name"]
                calls.append(call)
            case _:
                texts.append(text_of(block, where))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    return message | ({"tool_calls": calls} if calls else {})


def convert_tool_use(block: Block, field: str) -> dict[str, Any]:
    name, arguments = require_text(block, "name", field), block.get("input") or {}
    if not isinstance(arguments, dict):
        raise field_error(f"{field}.input", "must be an object")
    function = {"name": name, "arguments": arguments}
    return {"id": require_text(block, "id", field), "type": "function", "function": function}


def content_blocks(content: object, field: str) -> Iterator[tuple[Block, str]]:
    """Yield the blocks of a content, which may be a string, each with the name of its field."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise field_error(field, "must be a string or a list of content blocks")
    for index, block in enumerate(content):
        where = f"{field}[{index}]"
        if not isinstance(block, Mapping):
            raise field_error(where, 'must be a content block, such as {"type": "text", "text": "Hello"}')
        yield block, where


def text_of(block: Block, field: str) -> str:
    """Return the text of a block. Raises APIError (400) if it is not a text."""
    match block:
        case {"type": "text"}:
            return require_text(block, "text", field)
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return text
        case {"type": "search_result"}:
            texts = (text_of(part, where) for part, where in content_blocks(block.get("content"), f"{field}.content"))
            return "\n".join([require_text(block, "title", field), require_text(block, "source", field), *texts])
        case {"type": "image"}:
            raise field_error(field, "images are supported in messages of the user and in results of tools")
        case {"type": "document"}:
            raise field_error(field, "document input is not supported, except as plain text")
    kind = printable(str(block.get("type")), 40)
    raise field_error(field, f"content blocks of type {kind} are not supported here")


def require_text(block: Block, name: str, field: str) -> str:
    if not isinstance(text := block.get(name), str):
        raise field_error(f"{field}.{name}", "must be a string")
    return text
