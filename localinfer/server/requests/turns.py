"""Messages of other APIs, joined into the turns that chat templates expect.

OpenAI's Responses API and Anthropic's Messages API divide a turn into several messages or items. Many templates accept
only turns that alternate, and a system message only at the beginning.
"""

from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]
Content = str | list[Any]


def join_turns(messages: Iterable[Message]) -> list[Message]:
    """Return the turns that these messages make up."""
    turns: list[Message] = []
    for message in messages:
        append_turn(turns, message)
    return turns


def append_turn(turns: list[Message], message: Message) -> None:
    """Append a message, or add it to the last one if both belong to one turn.

    A system message after the beginning becomes part of the user's turn, in the tags with which Claude Code marks such
    texts.
    """
    if message["role"] == "system" and any(each["role"] != "system" for each in turns):
        message = {"role": "user", "content": f"<system-reminder>\n{message['content']}\n</system-reminder>"}
    last = turns[-1] if turns else {}
    if message["role"] != last.get("role") or message["role"] == "tool":
        turns.append(message)
    elif not (calls := last.get("tool_calls", [])):
        turns[-1] = last | message | {"content": joined(last["content"], message["content"])}
    elif message.get("tool_calls") and not message["content"]:
        turns[-1] = last | {"tool_calls": [*calls, *message["tool_calls"]]}
    else:
        turns.append(message)


def joined(first: Content, second: Content) -> Content:
    """Return two contents as one: texts as lines, or all parts if one of them has images or sounds."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n".join(filter(None, (first, second)))
    return [*parts_of(first), *parts_of(second)]


def parts_of(content: Content) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
