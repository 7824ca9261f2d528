"""The input of a chat template: messages, tools, documents and template variables, validated.

    Conversation(messages=[{"role": "user", "content": "Hello"}]).variables()

The variables follow Hugging Face's transformers, for which chat templates are written. This module depends on neither
templates nor tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from localinfer.errors import UsageError
from localinfer.escaping import printable

Message = Mapping[str, object]

ROLE = re.compile(r"\w[\w-]*")  # templates build control tokens from it, such as <|user|>
NAME = re.compile(r"[A-Za-z_]\w*")
MEDIA_TYPES = ("image", "audio", "video")
RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")  # reasoning content, the preferred name first


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation to render.

    A message is {"role": ..., "content": ...}. The content is a string or a list of parts {"type": "text", "text":
    ...}; it may be missing if there are `tool_calls`. A part {"type": "image", "ids": [...]}, or with "audio" or
    "video", stands for the token ids of an image, a sound or a video. `ids` are the token ids with which the model
    generated content and tool calls; the prompt repeats exactly these tokens. `reasoning_ids` are the token ids of the
    reasoning before them.

    `tools` are JSON schemas of functions, `documents` are mappings with title and text for retrieval-augmented
    generation. With `continue_final_message`, the model continues the last message. Otherwise the prompt ends with the
    generation prompt, unless `add_generation_prompt` is False.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError naming the first invalid value."""
        check_messages(self.messages)
        for name, values in ("tools", self.tools), ("documents", self.documents):
            if values is not None:
                check_mappings(name, values)
        check_template_kwargs(self.template_kwargs)

    @property
    def n_tool_calls(self) -> int:
        """The number of tool calls in the messages."""
        return sum(len(calls) for each in self.messages if isinstance(calls := each.get("tool_calls"), list | tuple))

    def variables(self, reasoning_keys: Sequence[str] = REASONING_KEYS[:2]) -> dict[str, object]:
        """Return the template variables of the conversation, by name. The reasoning of a message has these keys."""
        return {
            **firefunction_variables(self.tools or ()),
            **self.template_kwargs,
            "messages": [normalize_message(message, reasoning_keys) for message in self.messages],
            "tools": self.tools,
            "documents": self.documents,
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
        }


def firefunction_variables(tools: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Return the variables in which Firefunction's template expects the tools and the date.

    llama.cpp passes them, too, with the time of day, which would change the beginning of every prompt.
    """
    functions = json.dumps(tools, indent=2, ensure_ascii=False) if tools else ""
    return {"functions": functions, "datetime": f"{date.today():%b %d %Y}"}


def normalize_message(message: Message, reasoning_keys: Sequence[str]) -> Message:
    """Return a message without None values, which templates would print, and its reasoning under each of the keys.

    A message with tool calls has at least an empty content: many templates fail without one.
    """
    present = {key: value for key, value in message.items() if value is not None}
    if present.get("tool_calls"):
        present.setdefault("content", "")
    reasoning = [present[name] for name in REASONING_KEYS if name in present]
    if not reasoning:
        return present
    return {**dict.fromkeys(reasoning_keys[1:], reasoning[0]), **present, REASONING_KEYS[0]: reasoning[0]}


def parse_template_kwargs(text: str) -> dict[str, object]:
    """Parse the value of --chat-template-kwargs. Raises UsageError if it is not a JSON object."""
    try:
        values = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"chat_template_kwargs: invalid JSON: {printable(str(error), 100)}") from None
    if not isinstance(values, dict):
        raise UsageError('chat_template_kwargs: must be a JSON object, such as {"enable_thinking": false}')
    return values


# --- validation ---


def check_messages(messages: object) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise UsageError("messages: must be a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(f"messages[{index}]: must be a mapping with role and content")
        check_message(f"messages[{index}]", message)


def check_message(where: str, message: Message) -> None:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if not isinstance(role, str):
        raise UsageError(f"{where}.role: must be a string")
    if not ROLE.fullmatch(role):
        raise UsageError(f"{where}.role: must be a single word such as user, not {printable(repr(role), 40)}")
    if calls is not None:
        check_mappings(f"{where}.tool_calls", calls)
    for name in ("ids", "reasoning_ids"):
        if (ids := message.get(name)) is not None:
            check_ids(f"{where}.{name}", ids)
    if isinstance(content, (list, tuple)):
        for index, part in enumerate(content):
            check_part(f"{where}.content[{index}]", part)
    elif not isinstance(content, (str, Mapping)) and (content is not None or not calls):
        raise UsageError(f"{where}.content: must be a string or a list of parts")


def check_part(where: str, part: object) -> None:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise UsageError(f'{where}: must be a part, such as {{"type": "text", "text": "Hello"}}')
    if part["type"] in MEDIA_TYPES:
        check_ids(f"{where}.ids", part.get("ids", ()))
        return
    if part["type"] != "text":
        raise UsageError(f"{where}.type: must be text, image, audio or video, not {printable(str(part['type']), 40)}")
    if not isinstance(part.get("text"), str):
        raise UsageError(f"{where}.text: must be a string")


def check_mappings(name: str, values: object) -> None:
    if not isinstance(values, (list, tuple)):
        raise UsageError(f"{name}: must be a list")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise UsageError(f"{name}[{index}]: must be a mapping")


def check_ids(name: str, ids: object) -> None:
    if not isinstance(ids, (list, tuple)) or not all(type(id) is int for id in ids):
        raise UsageError(f"{name}: must be a list of token ids")


def check_template_kwargs(values: object) -> None:
    if not isinstance(values, Mapping):
        raise UsageError("template_kwargs: must be a mapping")
    for name in values:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(f"template_kwargs: {printable(repr(name), 40)} is not a valid variable name")
        if name in RESERVED_VARIABLES:
            raise UsageError(f"template_kwargs: {name} is reserved: it has a separate argument")
