"""What a chat template is given: messages, tools, documents and variables of its own, checked.

    Conversation(messages=[{"role": "user", "content": "Hello"}]).variables()

What becomes of them follows Hugging Face's transformers, which templates are written for and tried with. Knows
neither templates nor tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localinfer.errors import UsageError
from localinfer.text import printable

Message = Mapping[str, object]

ROLE = re.compile(r"\w[\w-]*")  # templates build control tokens of it, such as <|user|>: it must not contain another
NAME = re.compile(r"[A-Za-z_]\w*")
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
REASONING = ("reasoning_content", "thinking", "reasoning")  # under which names thoughts come, the first one's first


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """`tools` are JSON schemas of functions, `documents` what answers may draw on: mappings with title and text.

    A message is {"role": ..., "content": ...}. The content is a text or a list of {"type": "text", "text": ...}; it
    may be absent where there are `tool_calls`. `ids` are the tokens that a model wrote content and calls with, which it
    is then shown again, whatever their text would be cut into; `thought_ids` are those that came before them. The last
    message is open with `continue_final_message`: what comes next is more of it. Otherwise the prompt ends with what
    makes a model answer, unless `add_generation_prompt` is False.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        """UsageError names the first thing that is not as it should be."""
        check_messages(self.messages)
        for name, values in ("tools", self.tools), ("documents", self.documents):
            if values is not None:
                check_mappings(name, values)
        check_template_kwargs(self.template_kwargs)

    @property
    def n_calls(self) -> int:
        """How many calls of tools there are in the messages."""
        return sum(len(calls) for each in self.messages if isinstance(calls := each.get("tool_calls"), list | tuple))

    def variables(self) -> dict[str, object]:
        """By the names under which templates know them."""
        return {
            **self.template_kwargs,
            "messages": [completed(message) for message in self.messages],
            "tools": self.tools,
            "documents": self.documents,
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
        }


def completed(message: Message) -> Message:
    """Without what is None, which many templates would write out; thoughts under each name that templates look for."""
    present = {key: value for key, value in message.items() if value is not None}
    thoughts = [present[name] for name in REASONING if name in present]
    return {"thinking": thoughts[0], **present, REASONING[0]: thoughts[0]} if thoughts else present


def template_kwargs(text: str) -> dict[str, object]:
    """What --chat-template-kwargs says; UsageError when that is no JSON object."""
    try:
        values = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--chat-template-kwargs: no JSON: {printable(str(error), 100)}") from None
    if not isinstance(values, dict):
        raise UsageError('--chat-template-kwargs: must be a JSON object, such as {"enable_thinking": false}')
    return values


# --- what is checked ---


def check_messages(messages: object) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise UsageError("messages: must be a list of at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(f"messages[{place}]: must be a mapping with role and content")
        check_message(f"messages[{place}]", message)


def check_message(where: str, message: Message) -> None:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if not isinstance(role, str):
        raise UsageError(f"{where}.role: must be a text")
    if not ROLE.fullmatch(role):
        raise UsageError(f"{where}.role: must be a word, such as user, not {printable(repr(role), 40)}")
    if calls is not None:
        check_mappings(f"{where}.tool_calls", calls)
    for name in ("ids", "thought_ids"):
        if (ids := message.get(name)) is not None:
            check_ids(f"{where}.{name}", ids)
    if isinstance(content, (list, tuple)):
        for place, part in enumerate(content):
            check_part(f"{where}.content[{place}]", part)
    elif not isinstance(content, (str, Mapping)) and (content is not None or not calls):
        raise UsageError(f"{where}.content: must be a text or a list of parts")


def check_part(where: str, part: object) -> None:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise UsageError(f'{where}: must be a part, such as {{"type": "text", "text": "Hello"}}')
    if part["type"] != "text":
        raise UsageError(f"{where}.type: must be text, not {printable(str(part['type']), 40)}: only texts can be read")
    if not isinstance(part.get("text"), str):
        raise UsageError(f"{where}.text: must be a text")


def check_mappings(name: str, values: object) -> None:
    if not isinstance(values, (list, tuple)):
        raise UsageError(f"{name}: must be a list")
    for place, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise UsageError(f"{name}[{place}]: must be a mapping")


def check_ids(name: str, ids: object) -> None:
    if not isinstance(ids, (list, tuple)) or not all(type(id) is int for id in ids):
        raise UsageError(f"{name}: must be a list of token ids")


def check_template_kwargs(values: object) -> None:
    if not isinstance(values, Mapping):
        raise UsageError("template_kwargs: must be a mapping")
    for name in values:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(f"template_kwargs: no variable can be called {printable(repr(name), 40)}")
        if name in RESERVED:
            raise UsageError(f"template_kwargs: {name} is not set here: it has a place of its own")
